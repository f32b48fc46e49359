"""Nodes that are lost for good, and faults of nodes that joined: they are drawn beside the other faults, which stay."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.simulation.cluster import EMBEDDED, KAFKA, Cluster, Shape
from support.simulation.fault_kinds.losses import LOSS_KINDS, SILENTLY
from support.simulation.faults import Fault, FaultInjector, FaultKind, draw_faults
from support.simulation.loop import VirtualLoop
from support.simulation.mutations.planted_bug import on_etcd
from support.simulation.plan import DRAW_PLAN, SCALING, Plan
from support.simulation.scenario import SeedRun
from support.simulation.seeds.script import draw_script, draw_single_faults
from support.simulation.swarm import FAULT_KINDS, draw_swarm_plan, fault_kinds_of


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def small(engine: str, **nodes: Any) -> Plan:
    """A short history without activities; several coordinators have an etcd, or brokers."""
    plan = replace(DRAW_PLAN[engine](1), activities=(), records=60, fault_seconds=15.0)
    plan = on_etcd(plan) if engine == EMBEDDED else plan
    return replace(plan, shape=replace(plan.shape, **nodes))


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(engine, kind) for kind in LOSS_KINDS for engine in kind.engines],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_lost_node_never_comes_back_and_no_rule_is_broken(engine: str, kind: FaultKind) -> None:
    role = kind.name.removesuffix("-lost")
    plan = small(engine, coordinators=3, gateways=2)
    lost = f"{role}-1"
    faults = [Fault(4.0, kind.name, (lost,), 3.0, SILENTLY), Fault(5.0, "crash", (lost,), 1.0)]
    run = SeedRun(plan, faults=faults)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert +run.injector.met == {kind.name: 1}, "a crash of a node that is gone does not count"
    assert lost not in run.cluster.hosts and list(run.cluster.lost) == [lost]
    assert [name for name in run.cluster.hosts if name.rpartition("-")[0] == role]


def test_a_node_takes_the_place_of_the_only_one_although_the_fault_was_called_off() -> None:
    plan = small(KAFKA, leaders=1)
    run = SeedRun(plan, faults=[Fault(10.0, "leader-lost", ("leader-1",), 100.0, SILENTLY)])
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert [name for name in run.cluster.hosts if name.startswith("leader")] == ["leader-2"]


def test_the_last_gateway_is_not_lost() -> None:
    run = SeedRun(small(EMBEDDED, gateways=1), faults=[Fault(4.0, "gateway-lost", ("gateway-1",), 3.0)])
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert not +run.injector.met and "gateway-1" in run.cluster.hosts


def test_the_last_gateway_that_clients_know_is_not_lost_while_another_joins() -> None:
    loop = VirtualLoop()
    cluster = Cluster(loop, "1", Shape())
    injector = FaultInjector(cluster, random.Random(1), LOSS_KINDS)
    lose = next(kind.begin for kind in LOSS_KINDS if kind.name == "gateway-lost")
    fault = Fault(0.0, "gateway-lost", ("gateway-1",), 3.0, SILENTLY)

    async def main() -> None:
        await cluster.start()
        joining = loop.create_task(cluster.add_host("gateway"))
        await asyncio.sleep(0)
        assert "gateway-2" in cluster.hosts and not cluster.is_known_to_clients("gateway-2")
        await lose(injector, fault)
        assert not cluster.lost
        await joining
        assert cluster.is_known_to_clients("gateway-2")
        await lose(injector, fault)
        assert list(cluster.lost) == ["gateway-1"]

    loop.run(main())


@pytest.mark.parametrize("engine", [EMBEDDED, KAFKA])
def test_faults_with_streams_of_their_own_do_not_shift_the_others(engine: str) -> None:
    single = [kind.name for kind in FAULT_KINDS if engine in kind.engines and kind.seeds_share]
    seen = dict.fromkeys(single, 0)
    with_joined = 0
    for seed in range(300):
        plan = draw_swarm_plan(seed, engine)
        hosts = plan.shape.host_names()
        faults = draw_script(plan, hosts).faults
        once = list(draw_single_faults(plan, hosts))
        for fault in once:
            seen[fault.name] += 1
        joined = [fault for fault in faults if not set(fault.hosts) <= set(hosts)]
        with_joined += bool(joined)
        assert not joined or SCALING in plan.activities
        others = draw_faults(
            random.Random(f"{seed}/faults"),
            hosts,
            start=0.0,
            end=plan.fault_seconds,
            count=plan.fault_count,
            kinds_of_fault=fault_kinds_of(plan),
        )
        added = [*once, *joined] if others else []
        assert sorted(faults, key=str) == sorted([*others, *added], key=str)
        assert not {fault.name for fault in faults} & set(plan.fault_kinds_off)
    assert min(seen.values()) >= 5, seen
    assert with_joined > 50 or engine == KAFKA


def test_a_node_that_dies_while_it_joins_does_not_hold_up_the_operator() -> None:
    """No code of a host that died runs again, so the task that started it never ends."""
    loop = VirtualLoop()
    cluster = Cluster(loop, "1", Shape())

    async def main() -> None:
        await cluster.start()
        joining = loop.create_task(cluster.add_host("leader"))
        await asyncio.sleep(0)
        assert cluster.hosts["leader-2"].running and cluster.hosts["leader-2"].node is None
        cluster.hosts["leader-2"].crash()
        joined = await asyncio.wait_for(joining, 10.0)
        assert joined is cluster.hosts["leader-2"] and not joined.running
        await joined.start()
        assert joined.node is not None and joined.node.problems() == []

    loop.run(main())
    assert cluster.problems() == []


def test_a_node_that_is_stopped_while_it_joins_does_not_hold_up_the_operator() -> None:
    """A gateway of the kafka engine waits for brokers when it starts, and its stop calls that off (seed 466148322)."""
    loop = VirtualLoop()
    cluster = Cluster(loop, "1", Shape(engine=KAFKA, brokers=1))

    async def main() -> None:
        await cluster.start()
        joining = loop.create_task(cluster.add_host("gateway"))
        while cluster.hosts.get("gateway-2") is None or cluster.hosts["gateway-2"].node is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert not joining.done()
        await cluster.hosts["gateway-2"].stop()
        joined = await asyncio.wait_for(joining, 10.0)
        assert joined is cluster.hosts["gateway-2"] and not joined.running
        await joined.start()
        assert joined.node is not None and joined.node.problems() == []

    loop.run(main())
    assert cluster.problems() == []
