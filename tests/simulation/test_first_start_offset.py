"""An administrator sets share.auto.offset.reset=earliest, is answered, and a consumer joins, while the leader has not
seen the change: its stream of the catalog is late, it is cut off from the coordinator, or the coordinator dies.

The group must get every record; a start offset by the default, latest, would skip them for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kshare_rpc.generated.methods import WATCH_CATALOG
from kshare_rpc.network import Method, Payload
from support.simulation.cluster import COORDINATOR, ENGINES, Cluster, shape_of
from support.simulation.history import StateWritten
from support.simulation.kafka_clients.admin import LATEST, Admin
from support.simulation.loop import VirtualLoop
from support.simulation.mutations.mutation import Call, Mutation
from support.simulation.scripted import ScriptedConsumer, ScriptedTopic

GROUP, TOPIC, RECORDS = "G1", "orders", 20
LEADER = "leader-1"
LATE_S = 3.0
"""Shorter than a lease."""
RECOVERY_S = 30.0


class LateCatalog:
    """What the leader hears of the catalog waits while `is_here` is not set."""

    def __init__(self) -> None:
        self.is_here = asyncio.Event()
        self.is_here.set()

    def mutation(self) -> Mutation:
        return Mutation(calls={"leader": {WATCH_CATALOG: self._wrap}})

    def _wrap(self, call: Call) -> Call:
        async def changed(
            method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
        ) -> tuple[Any, memoryview]:
            answer = await call(method, request, payload, timeout_ms=timeout_ms)
            await self.is_here.wait()
            return answer

        return changed


Disturbance = Callable[[Cluster, LateCatalog], Awaitable[None]]


async def nothing(cluster: Cluster, catalog: LateCatalog) -> None:
    """The catalog is late, and the coordinator answers."""


async def cut_off(cluster: Cluster, catalog: LateCatalog) -> None:
    cluster.fabric.block(LEADER, COORDINATOR)
    cluster.fabric.block(COORDINATOR, LEADER)


async def crash(cluster: Cluster, catalog: LateCatalog) -> None:
    cluster.hosts[COORDINATOR].crash()


async def heal(cluster: Cluster, catalog: LateCatalog) -> None:
    cluster.fabric.heal()
    if not cluster.hosts[COORDINATOR].running:
        await cluster.hosts[COORDINATOR].start()
    catalog.is_here.set()


async def fetch_all(consumer: ScriptedConsumer) -> list[tuple[int, int, int]]:
    for _ in range(int(RECOVERY_S)):
        if found := await consumer.fetch(RECORDS * 2, max_wait_ms=1_000):
            return found
    return []


@pytest.mark.parametrize("disturb", [nothing, cut_off, crash])
@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_config_that_the_leader_has_not_seen_decides_where_a_group_begins(
    disturb: Disturbance, gateways: int, engine: str
) -> None:
    async def main() -> None:
        await cluster.start()
        topic = ScriptedTopic(cluster, TOPIC)
        metadata = await topic.create()
        await topic.produce([f"v{offset}" for offset in range(RECORDS)])
        admin = Admin(cluster.client("admin"))
        assert await admin.offset(TOPIC, 0, LATEST) == RECORDS, "the leader has the topic"
        catalog.is_here.clear()
        await admin.set_group_configs(GROUP, {"share.auto.offset.reset": "earliest"})
        consumer = ScriptedConsumer(cluster.client("consumer"), GROUP, "member")
        await consumer.join(TOPIC, metadata)
        await disturb(cluster, catalog)
        assert await consumer.fetch(RECORDS, max_wait_ms=int(LATE_S * 1000)) == []
        await heal(cluster, catalog)
        assert await fetch_all(consumer) == [(0, RECORDS - 1, 1)]

    loop = VirtualLoop(time_limit=100)
    catalog = LateCatalog()
    cluster = Cluster(loop, f"first start offset/{gateways}", shape_of(engine, gateways=gateways), catalog.mutation())
    loop.run(main())
    assert cluster.problems() == []
    written = [event.start_offset for event in cluster.history.events if isinstance(event, StateWritten)]
    assert written[:2] == [-1, 0], "InitializeShareGroupState, and the start offset that was found"
