"""A gateway keeps the records of a second leader for the next fetch, until little of their lock time is left.

No client has seen these records, so the delivery in which they were acquired does not count.
"""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.states import AcknowledgeType
from support.simulation.cluster import ENGINES, Cluster, shape_of
from support.simulation.kafka_clients.admin import Admin
from support.simulation.loop import VirtualLoop
from support.simulation.scripted import ScriptedConsumer, ScriptedTopic

GROUP, TOPIC = "G1", "orders"
LOCK_DURATION_S = 30
LIMIT = 2


@pytest.mark.parametrize("engine", ENGINES)
def test_records_that_were_kept_for_too_long_are_delivered_for_the_first_time(engine: str) -> None:
    async def main() -> None:
        await cluster.start()
        topic = ScriptedTopic(cluster, TOPIC, partitions=2)
        metadata = await topic.create()
        configs = {"share.delivery.count.limit": str(LIMIT), "share.auto.offset.reset": "earliest"}
        await Admin(cluster.client("admin")).set_group_configs(GROUP, configs)
        consumer = ScriptedConsumer(cluster.client("consumer"), GROUP, "member", partitions=(0, 1))
        await consumer.join(TOPIC, metadata)
        for _ in range(3):
            assert await consumer.fetch(10) == []
        waiting = asyncio.ensure_future(consumer.fetch(10, max_wait_ms=20_000))
        await asyncio.sleep(1)
        await topic.produce(["first"])
        assert await waiting == [(0, 0, 1)]
        await topic.produce(["kept", "kept too"], partition=1)
        await asyncio.sleep(LOCK_DURATION_S * 0.6)
        assert await consumer.acknowledge((0, 0), AcknowledgeType.ACCEPT) == 0
        assert await consumer.fetch(10, max_wait_ms=5_000) == [(0, 1, 1)]

    loop = VirtualLoop(time_limit=100)
    cluster = Cluster(loop, "kept records", shape_of(engine, leaders=2))
    loop.run(main())
    assert cluster.problems() == []
