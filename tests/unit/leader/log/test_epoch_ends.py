"""OffsetForLeaderEpoch of the leader: the ends of epochs in a history, and the answers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import NO_EPOCH_END, EpochEnd, EpochEntry, end_of_epoch
from kshare_leader.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic, view_of
from support.wire.record_building import build_batch

NOTHING = memoryview(b"")
HISTORY = [EpochEntry(2, 10), EpochEntry(3, 25), EpochEntry(7, 40)]


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [
        (-1, NO_EPOCH_END),
        (0, EpochEnd(0, 10)),
        (2, EpochEnd(2, 25)),
        (3, EpochEnd(3, 40)),
        (5, EpochEnd(3, 40)),
        (7, EpochEnd(7, 60)),
        (8, NO_EPOCH_END),
    ],
)
def test_the_end_of_an_epoch(leader_epoch: int, expected: EpochEnd) -> None:
    assert end_of_epoch(HISTORY, leader_epoch, 60) == expected
    assert end_of_epoch([], leader_epoch, 60) == NO_EPOCH_END


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 40))
def test_the_end_is_the_first_record_of_a_later_epoch(steps: list[int], wanted: int) -> None:
    """`steps`: how far the epoch of each record is above that of the record before it."""
    records = [sum(steps[: at + 1]) for at in range(len(steps))]
    history = [EpochEntry(epoch, at) for at, epoch in enumerate(records) if at == 0 or records[at - 1] != epoch]
    later = [at for at, epoch in enumerate(records) if epoch > wanted]
    found = end_of_epoch(history, wanted, len(records))
    if wanted > records[-1]:
        assert found == NO_EPOCH_END
    else:
        assert found.end_offset == (later[0] if later else len(records))
        assert found.leader_epoch == max((epoch for epoch in records if epoch <= wanted), default=wanted)


async def asked(
    logs: PartitionLogs, leader_epoch: int, *, key: TopicPartition = KEY, current: int = -1
) -> tuple[int, int, int]:
    partition = leader_pb2.OffsetForLeaderEpochRequest.Partition(
        topic_id=key.topic_id, partition=key.partition, current_leader_epoch=current, leader_epoch=leader_epoch
    )
    request = leader_pb2.OffsetForLeaderEpochRequest(partitions=[partition])
    (found,) = (await OffsetForLeaderEpochHandler(logs)(request, NOTHING)).partitions
    assert (found.topic_id, found.partition) == key
    return found.error_code, found.leader_epoch, found.end_offset


def test_a_log_that_began_again_tells_that_it_lost_the_records_of_older_epochs() -> None:
    """Its leader has epoch 3, and a consumer has read in epoch 2."""

    async def scenario() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic())
        await logs.append(KEY, memoryview(build_batch([b"a", b"b"])))
        assert await asked(logs, 2) == (ErrorCode.NONE, 2, 0)
        assert await asked(logs, 3) == (ErrorCode.NONE, 3, 2)
        assert await asked(logs, 4) == (ErrorCode.NONE, -1, -1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "current", "code"),
    [
        (KEY, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (KEY, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (TopicPartition(b"no-such-topic-id", 0), -1, ErrorCode.UNKNOWN_TOPIC_ID),
        (TopicPartition(TOPIC, 2), -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_errors(key: TopicPartition, current: int, code: ErrorCode) -> None:
    async def scenario() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(1, 1, 2)))
        assert await asked(logs, 3, key=key, current=current) == (code, -1, -1)

    asyncio.run(scenario())


def test_no_epoch_ends_before_the_log_starts() -> None:
    """As Kafka, whose LeaderEpochFileCache.truncateFromStart moves the start of the oldest epoch that is left."""

    async def scenario() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leader_epoch=1))
        await logs.append(KEY, memoryview(build_batch([b"a", b"b"])))
        logs.on_view(view_of(topic(leader_epoch=1)), view_of(topic(leader_epoch=5), version=2))
        await logs.append(KEY, memoryview(build_batch([b"c", b"d", b"e"])))
        assert [await asked(logs, epoch) for epoch in (1, 3, 5)] == [(0, 1, 2), (0, 1, 2), (0, 5, 5)]
        logs.move_starts([(logs.lookup(KEY), 1)])
        assert [await asked(logs, epoch) for epoch in (0, 1, 3, 5)] == [(0, 0, 1), (0, 1, 2), (0, 1, 2), (0, 5, 5)]
        logs.move_starts([(logs.lookup(KEY), 4)])
        assert [await asked(logs, epoch) for epoch in (1, 3, 5)] == [(0, 1, 4), (0, 3, 4), (0, 5, 5)]
        assert await asked(logs, 6) == (0, *NO_EPOCH_END)

    asyncio.run(scenario())
