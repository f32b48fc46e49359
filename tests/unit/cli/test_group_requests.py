"""Requests of commands about groups to a cluster that is not ready for them yet."""

from __future__ import annotations

import asyncio

from kshare.addresses import Address
from kshare.commands.groups.group_requests import coordinator_of, delete_group, list_groups
from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse
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


def test_groups_that_a_coordinator_still_loads_are_listed_when_it_has_them() -> None:
    told = [
        ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ListGroupsResponse(groups=[ListedGroup(group_id="g")]),
    ]

    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.answers[ApiKey.LIST_GROUPS] = lambda version, frame: told.pop(0)
            (group,) = await asyncio.to_thread(list_groups, broker.address)
            assert group.group_id == "g"

    asyncio.run(scenario())
    assert not told


def test_a_coordinator_that_another_replaced_is_found_anew() -> None:
    told = [
        DeletableGroupResult(group_id="g", error_code=ErrorCode.NOT_COORDINATOR),
        DeletableGroupResult(group_id="g", error_code=0),
    ]
    found: list[int] = []

    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            host, _, port = broker.address.rpartition(":")

            def find(version: int, frame: bytes) -> FindCoordinatorResponse:
                found.append(version)
                return FindCoordinatorResponse(
                    coordinators=[Coordinator(key="g", node_id=1, host=host, port=int(port), error_code=0)]
                )

            broker.answers[ApiKey.FIND_COORDINATOR] = find
            broker.answers[ApiKey.DELETE_GROUPS] = lambda version, frame: DeleteGroupsResponse(results=[told.pop(0)])
            await asyncio.to_thread(delete_group, broker.address, "g")

    asyncio.run(scenario())
    assert not told and len(found) == 2
