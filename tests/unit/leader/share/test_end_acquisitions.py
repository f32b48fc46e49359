"""EndAcquisitions: an operator frees records that a member holds; durable before answered, as a client's."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType, RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import TOPIC, Leader, run

ACCEPT = b"\x01"
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def ready(records: int = 10) -> Leader:
    leader = Leader()
    leader.channel.initialize(0, 0)
    leader.log().append(records)
    return leader


async def end(
    leader: Leader, first: int, last: int, kind: int = RELEASE, *, partition: int = 0, dry_run: bool = False
) -> leader_pb2.EndAcquisitionsResponse:
    request = leader_pb2.EndAcquisitionsRequest(
        group_id="group",
        topic_id=TOPIC,
        partition=partition,
        first_offset=first,
        last_offset=last,
        acknowledge_type=kind,
        dry_run=dry_run,
        principal="User:operator",
    )
    return await leader.service.end_acquisitions(request, memoryview(b""))


async def runs(leader: Leader) -> list[tuple[int, int, int, int]]:
    request = leader_pb2.DescribeSharePartitionsRequest(group_id="group")
    request.partitions.add(topic_id=TOPIC, partition=0)
    (found,) = (await leader.service.describe_share_partitions(request, memoryview(b""))).results
    return [(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in found.runs]


def test_released_records_go_to_the_next_member_and_the_former_holder_is_refused() -> None:
    async def test() -> None:
        leader = ready()
        assert await leader.acquire("stuck") == [(0, 9, 1)]
        answer = await end(leader, 3, 5)
        assert (answer.error_code, answer.record_count) == (ErrorCode.NONE, 3)
        assert await leader.acquire("other") == [(3, 5, 2)]
        assert await leader.acknowledge("stuck", 3, 5, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert await leader.acknowledge("stuck", 0, 2, ACCEPT) == ErrorCode.NONE
        assert await leader.acknowledge("other", 3, 5, ACCEPT) == ErrorCode.NONE
        await leader.service.stop()

    run(test)


def test_rejected_records_are_done() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("stuck")
        assert (await end(leader, 0, 9, REJECT)).record_count == 10
        assert await leader.acquire("other", max_wait_ms=100) == []
        assert await leader.acknowledge("stuck", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        await leader.service.stop()

    run(test)


def test_the_answer_waits_for_the_write_and_an_acknowledgement_meanwhile_is_refused() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("stuck")
        ending = asyncio.ensure_future(end(leader, 0, 9))
        await asyncio.sleep(0)
        assert not ending.done()
        assert [each[2] for each in await runs(leader)] == [RecordState.ACQUIRED]
        assert await leader.acknowledge("stuck", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert (await ending).record_count == 10
        assert await runs(leader) == [(0, 9, RecordState.AVAILABLE, 1)]
        await leader.service.stop()

    run(test)


def test_an_acknowledgement_that_is_being_written_wins() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        acknowledging = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(0)
        assert (await end(leader, 0, 9)).error_code == ErrorCode.INVALID_RECORD_STATE
        assert await acknowledging == ErrorCode.NONE
        await leader.service.stop()

    run(test)


def test_a_dry_run_counts_and_changes_nothing() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await leader.acknowledge("m1", 2, 2, ACCEPT)
        before = await runs(leader)
        assert (await end(leader, 1, 4, dry_run=True)).record_count == 3
        assert await runs(leader) == before
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize(
    ("first", "last", "kind", "code"),
    [
        (5, 4, RELEASE, ErrorCode.INVALID_REQUEST),
        (-1, 4, RELEASE, ErrorCode.INVALID_REQUEST),
        (0, 9, AcknowledgeType.ACCEPT, ErrorCode.INVALID_REQUEST),
        (0, 9, AcknowledgeType.RENEW, ErrorCode.INVALID_REQUEST),
        (20, 30, RELEASE, ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_what_is_no_acquired_record_is_refused(first: int, last: int, kind: int, code: ErrorCode) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        answer = await end(leader, first, last, kind)
        assert (answer.error_code, answer.record_count) == (code, 0)
        assert answer.error_message
        await leader.service.stop()

    run(test)


def test_what_is_not_in_memory_or_not_here_is_refused() -> None:
    async def test() -> None:
        leader = ready()
        assert (await end(leader, 0, 9)).error_code == ErrorCode.INVALID_RECORD_STATE
        assert (await end(leader, 0, 9, partition=99)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await leader.service.stop()

    run(test)


def test_totals_of_a_group_are_told() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await end(leader, 0, 4)
        await leader.acquire("m2")
        await leader.acknowledge("m1", 5, 9, ACCEPT)
        await asyncio.sleep(2)
        answer = await leader.service.describe_share_group_totals(
            leader_pb2.DescribeShareGroupTotalsRequest(), memoryview(b"")
        )
        (group,) = answer.groups
        assert (group.group_id, group.acquired_count, group.accepted_total) == ("group", 5, 5)
        assert (group.delivered_total, group.redelivered_total, group.dead_letters_total) == (15, 5, 0)
        assert (group.oldest_topic_id, group.oldest_partition) == (TOPIC, 0)
        assert 2_000 <= group.oldest_acquired_ms < 2_100
        await leader.service.stop()

    run(test)
