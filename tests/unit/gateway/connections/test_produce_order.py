"""A Produce request is held while an earlier one is in flight to another place than its own."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.identifiers import TopicPartition
from kshare_gateway.connections.produce_order import LeaderPlace, ProduceOrder

KEY = TopicPartition(b"t" * 16, 0)
PLACE = LeaderPlace("leader:1", 3, 0)


@pytest.mark.parametrize(
    ("now", "is_held"),
    [
        (PLACE, False),
        (PLACE._replace(address="leader:2"), True),
        (PLACE._replace(leader_epoch=4), True),
        (PLACE._replace(streams_lost=1), True),
    ],
    ids=["same", "another leader", "a later epoch", "after a lost stream"],
)
def test_what_an_earlier_request_holds(now: LeaderPlace, is_held: bool) -> None:
    async def scenario() -> None:
        order = ProduceOrder()
        earlier, later = order.begin(1, [KEY]), order.begin(1, [KEY])
        other_connection = order.begin(2, [KEY])
        earlier.sent_to[KEY] = PLACE
        waiting = asyncio.create_task(later.wait(lambda key: now))
        await asyncio.sleep(0)
        assert waiting.done() is not is_held
        await other_connection.wait(lambda key: now)
        earlier.end()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(scenario())
