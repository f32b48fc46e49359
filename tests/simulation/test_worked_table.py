"""KIP-932's worked table (offsets 100 to 120) through the real clients' protocol, all four roles and their RPCs.

The requests that reach the share coordinator are compared with the table's, one for one.
"""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.states import AcknowledgeType, RecordState
from support.simulation.cluster import ENGINES, Cluster, shape_of
from support.simulation.history import StateWritten
from support.simulation.loop import VirtualLoop
from support.simulation.scripted import ScriptedConsumer, ScriptedTopic

GROUP, TOPIC = "G1", "orders"
LOCK_DURATION_S = 3.0
AVAILABLE, ACKNOWLEDGED = int(RecordState.AVAILABLE), int(RecordState.ACKNOWLEDGED)

EXPECTED = [
    (100, ()),
    (110, ()),
    (-1, ((110, 110, AVAILABLE, 1),)),
    (-1, ((111, 118, AVAILABLE, 0), (119, 119, ACKNOWLEDGED, 1))),
    (-1, ((111, 112, AVAILABLE, 1),)),
    (-1, ((113, 118, ACKNOWLEDGED, 1),)),
    (-1, ((110, 110, ACKNOWLEDGED, 2),)),
    (120, ()),
]
"""StartOffset, and FirstOffset, LastOffset, DeliveryState and DeliveryCount of the StateBatches, of each request."""


async def act_it_out(cluster: Cluster) -> None:
    await cluster.start()
    topic = ScriptedTopic(cluster, TOPIC)
    metadata = await topic.create()
    assert await topic.produce([f"v{offset}" for offset in range(100)]) == 0
    consumers = [ScriptedConsumer(cluster.client(f"consumer-{n}"), GROUP, f"member-{n}") for n in (1, 2, 3)]
    for consumer in consumers:
        await consumer.join(TOPIC, metadata)
    one, two, three = consumers
    assert await one.fetch(10) == [], "the group starts at the latest offset"

    assert await topic.produce([f"v{offset}" for offset in range(100, 110)]) == 100
    assert await one.fetch(10) == [(100, 109, 1)]
    assert await one.acknowledge((100, 109), AcknowledgeType.ACCEPT) == 0

    assert await topic.produce([f"v{offset}" for offset in range(110, 120)]) == 110
    assert await one.fetch(3) == [(110, 112, 1)]
    fetched_by_one = cluster.loop.time()
    await asyncio.sleep(1)
    assert await two.fetch(6) == [(113, 118, 1)]
    assert await three.fetch(1) == [(119, 119, 1)]

    assert await one.acknowledge((110, 110), AcknowledgeType.RELEASE) == 0
    assert await three.acknowledge((119, 119), AcknowledgeType.ACCEPT) == 0
    assert await topic.produce(["v120"]) == 120
    assert await one.fetch(2) == [(110, 110, 2), (120, 120, 1)]

    await asyncio.sleep(fetched_by_one + LOCK_DURATION_S + 0.2 - cluster.loop.time())
    assert await two.acknowledge((113, 118), AcknowledgeType.ACCEPT) == 0
    assert await three.fetch(2) == [(111, 112, 2)]
    assert await one.acknowledge((110, 110), AcknowledgeType.ACCEPT) == 0
    assert await three.acknowledge((111, 112), AcknowledgeType.ACCEPT) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_worked_table(engine: str) -> None:
    configs = {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(int(LOCK_DURATION_S * 1000)),
    }
    loop = VirtualLoop(time_limit=60)
    cluster = Cluster(loop, "worked table", shape_of(engine, configs=configs))
    loop.run(act_it_out(cluster))
    assert cluster.problems() == []
    written = [event for event in cluster.history.events if isinstance(event, StateWritten)]
    initialized, *requests = written
    assert (initialized.leader_epoch, initialized.start_offset) == (-1, -1), "InitializeShareGroupState comes first"
    assert [(event.start_offset, event.batches) for event in requests] == EXPECTED
    assert {event.state_epoch for event in requests} == {initialized.state_epoch}
    assert len({event.leader_epoch for event in requests}) == 1
