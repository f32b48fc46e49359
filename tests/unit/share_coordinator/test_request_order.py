"""Requests that arrive after later ones of their sender: an initialization does not bring deleted state back."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_STATE, INITIALIZE_SHARE_GROUP_STATE
from kshare_runtime.memory_store import MemoryDisk
from kshare_share_coordinator.handlers.request_order import RequestOrder, Sent
from support.share_coordinator.single import TIMEOUT_MS, SingleShareCoordinator

KEY = SharePartitionKey("orders", bytes(range(16)), 0)
OTHER = KEY._replace(partition=1)
A, B = b"sender-a", b"sender-b"


@pytest.mark.parametrize(
    ("before", "sent", "late"),
    [
        ([], Sent(A, 1), False),
        ([Sent(A, 1)], Sent(A, 2), False),
        ([Sent(A, 2)], Sent(A, 1), True),
        ([Sent(A, 2)], Sent(A, 2), False),
        ([Sent(A, 2), Sent(A, 1)], Sent(A, 1), True),
        ([Sent(A, 2)], Sent(B, 1), False),
        ([Sent(A, 2)], Sent(), False),
        ([Sent(A, 2), Sent()], Sent(A, 1), True),
    ],
)
def test_a_request_is_late_after_a_later_one_of_its_sender(before: list[Sent], sent: Sent, late: bool) -> None:
    order = RequestOrder()
    for each in before:
        order.is_late(KEY, each)
    assert order.is_late(KEY, sent) == late
    assert not order.is_late(OTHER, sent)


def test_the_share_partitions_that_were_named_last_are_remembered() -> None:
    order = RequestOrder(limit=2)
    for key in (KEY, OTHER, KEY, KEY._replace(partition=2)):
        order.is_late(key, Sent(A, 5))
    assert order.is_late(KEY, Sent(A, 4))
    assert not order.is_late(OTHER, Sent(A, 4)), "two others were named since"


def test_state_that_was_deleted_stays_so() -> None:
    async def test() -> None:
        one = SingleShareCoordinator(MemoryDisk().open_store)
        await one.start()

        async def initialize(number: int) -> int:
            request = messages.InitializeShareGroupStateRequest(group_id=KEY.group_id, sender=A, sent_number=number)
            request.partitions.add(topic_id=KEY.topic_id, partition=0, state_epoch=5, start_offset=44)
            answer, _ = await one.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
            return answer.results[0].error_code

        async def delete(number: int) -> int:
            request = messages.DeleteShareGroupStateRequest(group_id=KEY.group_id, sender=A, sent_number=number)
            request.partitions.add(topic_id=KEY.topic_id, partition=0)
            answer, _ = await one.channel.call(DELETE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
            return answer.results[0].error_code

        assert await initialize(2) == ErrorCode.NONE
        assert await delete(3) == ErrorCode.NONE
        assert await initialize(1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await one.read(KEY)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await initialize(4) == ErrorCode.NONE
        assert await delete(3) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await one.read(KEY)).start_offset == 44
        await one.stop()

    asyncio.run(test())
