"""ListStateSummaries: all that is stored of one leader's share-partitions, in pages, and nothing else."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import INITIALIZE_SHARE_GROUP_STATE, LIST_STATE_SUMMARIES
from kshare_runtime.memory_store import MemoryDisk
from support.share_coordinator.single import TIMEOUT_MS, TOPIC_ID, SingleShareCoordinator
from support.simulation.loop import VirtualLoop

PARTITIONS = 900
LEADER = 3


def topic() -> coordinator_pb2.Topic:
    """Every third partition belongs to LEADER."""
    found = coordinator_pb2.Topic(topic_id=TOPIC_ID, name="orders")
    for number in range(PARTITIONS):
        found.partitions.add(partition=number, leader_node_id=LEADER if number % 3 == 0 else 4)
    return found


async def list_all(role: SingleShareCoordinator) -> tuple[dict[int, tuple[int, int]], int]:
    """Start offset and done records by partition, and how many pages they came in."""
    found: dict[int, tuple[int, int]] = {}
    position, pages = b"", 0
    while True:
        request = messages.ListStateSummariesRequest(leader_node_id=LEADER, position=position, catalog_version=1)
        answer, _ = await role.channel.call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
        assert answer.error_code == 0
        pages += 1
        for result in answer.results:
            assert (result.group_id, result.topic_id) == ("orders", TOPIC_ID) and result.partition not in found
            found[result.partition] = (result.start_offset, result.delivery_complete_count)
        position = answer.next_position
        if not position:
            return found, pages


async def initialize_without_offset(role: SingleShareCoordinator, partition: int) -> None:
    request = messages.InitializeShareGroupStateRequest(group_id="orders")
    request.partitions.add(topic_id=TOPIC_ID, partition=partition, state_epoch=1, start_offset=-1)
    await role.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)


def test_all_pages_together_are_the_share_partitions_of_the_leader() -> None:
    async def scene() -> None:
        role = SingleShareCoordinator(MemoryDisk().open_store)
        role.topics = [topic()]
        await role.start()
        for number in range(1, PARTITIONS):
            assert await role.initialize(role.key(number)) == 0
        await initialize_without_offset(role, 0)
        assert await role.write(role.key(3), [(0, 1, 0, 1), (2, 6, 2, 1)], delivery_complete_count=5) == 0
        expected = {number: (0, 0) for number in range(3, PARTITIONS, 3)} | {3: (0, 5)}
        found, pages = await list_all(role)
        assert found == expected and pages > 2
        await role.restart()
        assert (await list_all(role))[0] == expected, "without anything in memory"
        await role.stop()

    run(scene())


def test_share_partitions_with_archiving_records_are_marked() -> None:
    async def scene() -> None:
        role = SingleShareCoordinator(MemoryDisk().open_store)
        role.topics = [topic()]
        await role.start()
        for number in (3, 6):
            assert await role.initialize(role.key(number)) == 0
        assert await role.write(role.key(3), [(0, 1, 3, 1), (2, 6, 2, 1)], delivery_complete_count=5) == 0
        request = messages.ListStateSummariesRequest(leader_node_id=LEADER, catalog_version=1)
        answer, _ = await role.channel.call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
        assert {each.partition: each.has_archiving for each in answer.results} == {3: True, 6: False}
        await role.stop()

    run(scene())


def test_a_catalog_that_is_older_than_the_leaders_and_a_wrong_position_are_refused() -> None:
    async def scene() -> None:
        role = SingleShareCoordinator(MemoryDisk().open_store)
        role.topics = [topic()]
        await role.start()
        for request, code in (
            (messages.ListStateSummariesRequest(catalog_version=2), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            (messages.ListStateSummariesRequest(position=b"x"), ErrorCode.INVALID_REQUEST),
        ):
            answer, _ = await role.channel.call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
            assert answer.error_code == code and answer.error_message
        await role.stop()

    run(scene())


def run(scene: object) -> None:
    loop = VirtualLoop(time_limit=3600.0)
    asyncio.set_event_loop(loop)
    try:
        loop.run(scene)  # type: ignore[arg-type]
    finally:
        asyncio.set_event_loop(None)
        loop.close()
