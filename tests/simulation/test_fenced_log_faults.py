"""Owners of one fenced log on hosts that die, freeze and are cut off, over brokers that do the same.

Each owner is a process with its own client; now and then it believes that it is the owner, so there are two at once.
A referee reads the log at the end by rules of its own: what was confirmed counts, and every successor knew it.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_upstream.fenced_log.owner import FencedLog
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import OpenedUpstream
from kshare_upstream.port import UpstreamPartitionName as Name
from support.simulation.faults import FaultInjector, draw_faults
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.kafka_clients.admin import Admin
from support.simulation.loop import VirtualLoop
from support.simulation.swarm import OF_ALL_HOSTS
from support.simulation.upstream.brokers import BrokerCluster, opener
from support.upstream.fighting_owners import Account, Owner, broken_rules, referee

AT = Name("state", 0)
OWNERS = 3
FIGHT_S = 40.0
DEADLINE_MS = 4_000
FAULT_COUNT = 12


class OwnerNode:
    """A process that fights for the log (`fighting_owners.Owner`)."""

    def __init__(
        self, node_id: int, kind: type[FencedLog], environment: Environment, upstream: OpenedUpstream, account: Account
    ) -> None:
        log = kind(
            upstream,
            PartitionLog(upstream, AT, deadline_ms=DEADLINE_MS),
            max_batch_bytes=1 << 20,
            now_ms=environment.clock.now_ms,
        )
        self._owner = Owner(log, node_id, account, environment.random, longest_rest_s=4.0)
        self._upstream = upstream
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._life = asyncio.create_task(self._owner.live())

    async def stop(self, grace_ms: int) -> None:
        assert self._life is not None
        self._life.cancel()
        await self._upstream.close()

    def problems(self) -> list[str]:
        return []


def problems(seed: int, kind: type[FencedLog] = FencedLog) -> list[str]:
    """What was broken in the simulation of a seed."""
    loop, account = VirtualLoop(), Account()
    brokers = BrokerCluster(loop, str(seed))

    def owner(node_id: int) -> SimulatedHost:
        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            return OwnerNode(node_id, kind, environment, opener(brokers.upstream)(), account)

        return SimulatedHost(
            f"owner-{node_id}", seed=str(seed), fabric=brokers.fabric, listeners=brokers.listeners, build=build
        )

    async def simulation() -> None:
        await brokers.start()
        admin = Admin(brokers.client("admin"))
        await admin.create_topic(AT.topic, 1, {"min.insync.replicas": "2"}, replicas=3)
        owners = {f"owner-{node_id}": owner(node_id) for node_id in range(1, OWNERS + 1)}
        brokers.hosts.update(owners)
        for host in owners.values():
            host.start()
        draw = random.Random(f"{seed}/faults")
        start = loop.time()
        faults = draw_faults(
            draw,
            list(brokers.hosts),
            start=start,
            end=start + FIGHT_S,
            count=FAULT_COUNT,
            kinds_of_fault=OF_ALL_HOSTS,
        )
        injector = FaultInjector(brokers, draw, OF_ALL_HOSTS)
        injector.start(faults)
        await asyncio.sleep(FIGHT_S)
        await injector.heal()
        await asyncio.sleep(FIGHT_S / 3)

    loop.run(simulation())
    partition = brokers.upstream.partition(AT)
    assert partition is not None
    counted = referee([batch.data for batch in partition.log.history])
    return [*brokers.problems(), *broken_rules(account, counted)]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_confirmed_stays(seed: int) -> None:
    assert problems(seed) == []


class WithoutPositionCheck(FencedLog):
    """Confirms what the broker appended, wherever that is."""

    async def _check_position(self, base_offset: int) -> None:
        return


def test_an_owner_that_does_not_check_positions_is_found() -> None:
    assert any(problems(seed, WithoutPositionCheck) for seed in range(200))
