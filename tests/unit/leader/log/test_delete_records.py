"""DeleteRecords at the leader: Kafka's checks, the low watermark, and reads afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.handlers.delete_records import PARTITIONS_LIMIT, DeleteRecordsHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic
from support.wire.record_building import build_batch

SECOND = TopicPartition(TOPIC, 1)
NOWHERE = memoryview(b"")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def filled(disk: MemoryDisk, **configs: str) -> PartitionLogs:
    """Two partitions here with three batches of two records each, one at another leader."""
    logs = open_logs(disk.open_store("leader"), topic(leaders=(1, 1, 2), configs=configs))
    for _ in range(3):
        for key in (KEY, SECOND):
            await logs.append(key, memoryview(build_batch([b"a", b"b"], keys=[b"k", b"l"])))
    return logs


async def delete(logs: PartitionLogs, *wanted: tuple[TopicPartition, int]) -> list[tuple[int, int]]:
    """Low watermark and error of each partition."""
    request = leader_pb2.DeleteRecordsRequest(
        partitions=[
            leader_pb2.DeleteRecordsRequest.Partition(topic_id=key.topic_id, partition=key.partition, offset=offset)
            for key, offset in wanted
        ]
    )
    answer = await DeleteRecordsHandler(logs)(request, NOWHERE)
    assert [(result.topic_id, result.partition) for result in answer.results] == [key for key, _ in wanted]
    return [(result.low_watermark, result.error_code) for result in answer.results]


@pytest.mark.parametrize(
    ("offset", "low_watermark", "code"),
    [
        pytest.param(0, 0, ErrorCode.NONE, id="the start"),
        pytest.param(3, 3, ErrorCode.NONE, id="within a batch"),
        pytest.param(6, 6, ErrorCode.NONE, id="all"),
        pytest.param(-1, 6, ErrorCode.NONE, id="the high watermark"),
        pytest.param(7, -1, ErrorCode.OFFSET_OUT_OF_RANGE, id="above the high watermark"),
        pytest.param(-2, -1, ErrorCode.OFFSET_OUT_OF_RANGE, id="negative"),
        pytest.param(-(1 << 63), -1, ErrorCode.OFFSET_OUT_OF_RANGE, id="as negative as can be"),
        pytest.param((1 << 63) - 1, -1, ErrorCode.OFFSET_OUT_OF_RANGE, id="as large as can be"),
    ],
)
def test_which_offsets_are_taken(offset: int, low_watermark: int, code: ErrorCode) -> None:
    async def test() -> None:
        logs = await filled(MemoryDisk())
        assert await delete(logs, (KEY, offset)) == [(low_watermark, code)]
        log = logs.find(KEY)
        assert log is not None and log.log_start_offset == max(0, low_watermark)

    run(test())


def test_the_start_only_moves_up() -> None:
    async def test() -> None:
        logs = await filled(MemoryDisk())
        assert await delete(logs, (KEY, 4)) == [(4, 0)]
        assert await delete(logs, (KEY, 2)) == [(4, 0)]
        assert await delete(logs, (KEY, 5), (KEY, 3)) == [(5, 0), (5, 0)]

    run(test())


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("delete", ErrorCode.NONE),
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("", ErrorCode.NONE),
    ],
)
def test_topics_that_are_compacted_only_refuse(policy: str, code: ErrorCode) -> None:
    async def test() -> None:
        logs = await filled(MemoryDisk(), **{"cleanup.policy": policy})
        assert await delete(logs, (KEY, 4)) == [(-1 if code else 4, code)]

    run(test())


def test_each_partition_is_answered_for_itself_and_all_are_one_write() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = await filled(disk)
        heard: list[int] = []
        for key in (KEY, SECOND):
            log = logs.find(key)
            assert log is not None
            log.add_listener(lambda log=log: heard.append(log.log_start_offset))  # type: ignore[misc]
        wanted = [
            (KEY, 4),
            (TopicPartition(TOPIC, 2), 0),
            (TopicPartition(TOPIC, 3), 0),
            (TopicPartition(b"no-such-topic-id", 0), 0),
            (SECOND, 9),
        ]
        assert await delete(logs, *wanted) == [
            (4, ErrorCode.NONE),
            (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (-1, ErrorCode.UNKNOWN_TOPIC_ID),
            (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ]
        assert heard == [4]
        disk.fail_next_writes(1)
        failed = (-1, ErrorCode.KAFKA_STORAGE_ERROR)
        assert await delete(logs, (KEY, 5), (SECOND, 5), (SECOND, 7)) == [
            failed,
            failed,
            (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ]
        assert heard == [4]
        assert await delete(logs, (KEY, 5), (SECOND, 6)) == [(5, 0), (6, 0)]
        assert heard == [4, 5, 6]
        logs.close()
        disk.crash()
        again = open_logs(disk.open_store("leader"), topic(leaders=(1, 1, 2)))
        starts = [(log.log_start_offset, log.high_watermark) for log in again.all_logs()]
        assert starts == [(5, 6), (6, 6)]

    run(test())


def test_readers_below_the_start_are_told_so() -> None:
    async def test() -> None:
        logs = await filled(MemoryDisk())
        await delete(logs, (KEY, 3))

        async def fetch(offset: int) -> Any:
            partition = leader_pb2.FetchRequest.Partition(
                topic_id=TOPIC, partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            request = leader_pb2.FetchRequest(max_bytes=1 << 20, partitions=[partition])
            answer, _ = await FetchHandler(logs)(request, NOWHERE)
            return answer.partitions[0]

        assert (await fetch(2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        found = await fetch(3)
        assert (found.error_code, found.log_start_offset, found.records_length > 0) == (0, 3, True)
        partition = leader_pb2.ListOffsetsRequest.Partition(
            topic_id=TOPIC, partition=0, current_leader_epoch=-1, timestamp=-2
        )
        answer = await ListOffsetsHandler(logs)(leader_pb2.ListOffsetsRequest(partitions=[partition]), NOWHERE)
        assert answer.partitions[0].offset == 3
        appended = await logs.append(KEY, memoryview(build_batch()))
        assert (appended.base_offset, appended.log_start_offset) == (6, 3)

    run(test())


def test_too_many_partitions_are_refused() -> None:
    async def test() -> None:
        logs = await filled(MemoryDisk())
        answers = await delete(logs, *[(KEY, 1)] * (PARTITIONS_LIMIT + 1))
        assert set(answers) == {(-1, ErrorCode.INVALID_REQUEST)}
        assert (await delete(logs, (KEY, 0))) == [(0, 0)]

    run(test())
