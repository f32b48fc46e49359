"""Requests of commands about groups to a cluster that is not ready for them yet."""

from __future__ import annotations

import asyncio

from kshare.addresses import Address
from kshare.commands.groups.group_requests import coordinator_of
from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from support.upstream.scripted_broker import ScriptedBroker


def test_a_cluster_that_makes_its_coordinators_topic_is_asked_again() -> None:
    told = [
        Coordinator(key="g", node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Coordinator(key="g", node_id=1, host="broker", port=9092),
    ]

    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.answers[ApiKey.FIND_COORDINATOR] = lambda version, frame: FindCoordinatorResponse(
                coordinators=[told.pop(0)]
            )
            assert await asyncio.to_thread(coordinator_of, broker.address, "g") == Address("broker", 9092)

    asyncio.run(scenario())
    assert not told
