"""Produce, Fetch, ListOffsets, WriteTxnMarkers and DescribeProducers with transactions, from message to message."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.handlers import write_txn_markers
from kshare_leader.handlers.describe_producers import DescribeProducersHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.handlers.produce import ProduceHandler
from kshare_leader.handlers.write_txn_markers import WriteTxnMarkersHandler
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.transactions import AbortedEntry
from kshare_leader.ports import AbortedTransaction
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.committed_reading import consume, fetch_once
from support.leader.log.leader_logs import KEY, TOPIC, StillClock, open_logs, topic, view_of
from support.leader.log.transactional_logs import ScriptedCoordinator, append, end_of, transactional_batch, verifier_of
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

SECOND = TopicPartition(TOPIC, 1)
ELSEWHERE = TopicPartition(TOPIC, 2)
UNKNOWN = TopicPartition(b"no-such-topic-id", 0)
NOTHING = memoryview(b"")


def run(test: Coroutine[Any, Any, None]) -> None:
    VirtualLoop().run(test)


def new_logs(disk: MemoryDisk | None = None, **options: Any) -> PartitionLogs:
    return open_logs((disk or MemoryDisk()).open_store("leader"), topic(leaders=(1, 1, 2)), **options)


# Produce


async def produce(
    logs: PartitionLogs,
    coordinator: ScriptedCoordinator,
    *batches: tuple[TopicPartition, memoryview],
    transactional_id: str = "pay",
    adds: bool = False,
) -> list[tuple[int, int]]:
    request = leader_pb2.ProduceRequest(acks=-1, transactional_id=transactional_id, add_to_transaction=adds)
    for key, records in batches:
        request.partitions.add(topic_id=key.topic_id, partition=key.partition, records_length=len(records))
    handler = ProduceHandler(logs, verifier_of(logs, coordinator))
    response = await handler(request, memoryview(b"".join(records for _, records in batches)))
    return [(answer.error_code, answer.base_offset) for answer in response.partitions]


@pytest.mark.parametrize("adds", [False, True])
def test_produce_asks_the_coordinator_about_the_transaction(adds: bool) -> None:
    async def test() -> None:
        logs, coordinator = new_logs(), ScriptedCoordinator()
        coordinator.codes[("pay", TOPIC.decode(), 1)] = ErrorCode.TRANSACTION_ABORTABLE
        answers = await produce(
            logs,
            coordinator,
            (KEY, transactional_batch(1, 0)),
            (SECOND, transactional_batch(1, 0)),
            (ELSEWHERE, transactional_batch(1, 0)),
            adds=adds,
        )
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answers == [(0, 0), (ErrorCode.TRANSACTION_ABORTABLE, -1), (moved, -1)]
        (call,) = coordinator.asked()
        assert call == [("pay", 0, not adds, [(TOPIC.decode(), 0), (TOPIC.decode(), 1)])]

    run(test())


def test_transactional_batches_of_one_request_are_of_one_producer() -> None:
    async def test() -> None:
        logs, coordinator = new_logs(), ScriptedCoordinator()
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        for other in (transactional_batch(2, 0), transactional_batch(1, 0, epoch=1)):
            answers = await produce(logs, coordinator, (KEY, transactional_batch(1, 0)), (SECOND, other))
            assert answers == [(mapping, -1), (mapping, -1)]
        plain = memoryview(build_batch())
        answers = await produce(
            logs, coordinator, (KEY, transactional_batch(1, 0)), (SECOND, plain), (SECOND, plain[:20])
        )
        assert answers == [(0, 0), (0, 0), (ErrorCode.CORRUPT_MESSAGE, -1)]

    run(test())


def test_a_transactional_batch_without_a_transactional_id_is_refused() -> None:
    async def test() -> None:
        logs, coordinator = new_logs(), ScriptedCoordinator()
        answers = await produce(logs, coordinator, (KEY, transactional_batch(1, 0)), transactional_id="")
        assert answers == [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
        assert coordinator.calls == []

    run(test())


# Fetch


async def history(logs: PartitionLogs) -> PartitionLog:
    """0 plain; 1 of A; 2 of B; 3 of A; 4 A aborts; 5 B commits; 6 of A, open; 7 plain."""
    await logs.append(KEY, memoryview(build_batch([b"plain"])))
    await append(logs, KEY, transactional_batch(1, 0))
    await append(logs, KEY, transactional_batch(2, 0))
    await append(logs, KEY, transactional_batch(1, 1))
    await logs.end_transaction(KEY, end_of(1, committed=False))
    await logs.end_transaction(KEY, end_of(2, committed=True))
    await append(logs, KEY, transactional_batch(1, 2))
    await logs.append(KEY, memoryview(build_batch([b"later"])))
    return logs.lookup(KEY)


def test_what_each_isolation_level_reads() -> None:
    async def test() -> None:
        logs = new_logs()
        await history(logs)
        committed, data = await fetch_once(logs, KEY, 0, committed=True)
        assert (committed.high_watermark, committed.last_stable_offset) == (8, 6)
        aborted = [(entry.producer_id, entry.first_offset) for entry in committed.aborted_transactions]
        assert aborted == [(1, 1)] and committed.records_length == len(data)
        uncommitted, everything = await fetch_once(logs, KEY, 0, committed=False)
        assert (uncommitted.high_watermark, uncommitted.last_stable_offset) == (8, 6)
        assert not uncommitted.aborted_transactions and everything.startswith(data) and len(everything) > len(data)
        seen = [(record.offset, record.value) for record in await consume(logs, KEY, committed=True)]
        assert seen == [(0, b"plain"), (2, b"2:0:0")]
        seen = [(record.offset, record.value) for record in await consume(logs, KEY, committed=False)]
        assert [offset for offset, _ in seen] == [0, 1, 2, 3, 6, 7]

    run(test())


@pytest.mark.parametrize(
    ("offset", "max_bytes", "expected"),
    [(0, 1, []), (1, 1, [(1, 1)]), (2, 1, [(1, 1)]), (4, 1000, [(1, 1)]), (5, 1000, []), (6, 1000, [])],
)
def test_only_aborted_transactions_of_the_range_are_named(
    offset: int, max_bytes: int, expected: Sequence[tuple[int, int]]
) -> None:
    async def test() -> None:
        logs = new_logs()
        await history(logs)
        answer, _ = await fetch_once(logs, KEY, offset, committed=True, max_bytes=max_bytes)
        assert [(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions] == expected

    run(test())


def test_an_aborted_transaction_without_its_marker_is_not_named() -> None:
    """Earlier versions compacted markers away and left their transactions in the index."""

    async def test() -> None:
        logs = new_logs()
        log = await history(logs)
        stale = AbortedEntry(AbortedTransaction(2, 0, 2), 0)
        log.producers.aborted.add([stale])
        for offset in (0, 1, 2):
            answer, _ = await fetch_once(logs, KEY, offset, committed=True)
            assert [entry.producer_id for entry in answer.aborted_transactions] == [1]

    run(test())


def test_offsets_between_the_last_stable_offset_and_the_end_are_not_out_of_range() -> None:
    async def test() -> None:
        logs = new_logs()
        await history(logs)
        for offset in (6, 7, 8):
            answer, data = await fetch_once(logs, KEY, offset, committed=True)
            assert (answer.error_code, data) == (0, b"")
        answer, _ = await fetch_once(logs, KEY, 9, committed=True)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(test())


class CountingFetches(FetchHandler):
    """Counts how often it read."""

    reads = 0

    def _read_all(self, request: leader_pb2.FetchRequest) -> Any:
        self.reads += 1
        return super()._read_all(request)


def waiting_fetch(
    handler: FetchHandler, offset: int, *, committed: bool, min_bytes: int = 1
) -> asyncio.Task[tuple[leader_pb2.FetchResponse, Any]]:
    request = leader_pb2.FetchRequest(
        max_wait_ms=10_000, min_bytes=min_bytes, max_bytes=1 << 20, isolation_level=int(committed)
    )
    request.partitions.add(
        topic_id=TOPIC, partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1 << 20
    )

    async def fetch() -> tuple[leader_pb2.FetchResponse, Any]:
        return await handler(request, NOTHING)

    return asyncio.get_running_loop().create_task(fetch())


def test_a_reader_of_committed_records_is_woken_by_the_end_of_the_transaction_only() -> None:
    async def test() -> None:
        logs = new_logs()
        await append(logs, KEY, transactional_batch(1, 0))
        handler = CountingFetches(logs)
        committed = waiting_fetch(handler, 0, committed=True)
        await asyncio.sleep(0.01)
        for sequence in range(1, 20):
            await append(logs, KEY, transactional_batch(1, sequence))
            await logs.append(KEY, memoryview(build_batch()))
        await asyncio.sleep(0.01)
        assert not committed.done() and handler.reads == 1
        await logs.end_transaction(KEY, end_of(1, committed=True))
        response, payload = await asyncio.wait_for(committed, 0.01)
        assert response.partitions[0].last_stable_offset == 40 and len(payload) == 40
        assert handler.reads == 2

    run(test())


def test_a_reader_of_all_records_does_not_wait_for_the_end() -> None:
    async def test() -> None:
        logs = new_logs()
        uncommitted = waiting_fetch(FetchHandler(logs), 0, committed=False)
        await asyncio.sleep(0.01)
        await append(logs, KEY, transactional_batch(1, 0))
        response, payload = await asyncio.wait_for(uncommitted, 0.01)
        assert response.partitions[0].high_watermark == 1 and len(payload) == 1

    run(test())


def test_a_reader_of_committed_records_waits_for_so_many_stable_bytes() -> None:
    async def test() -> None:
        logs = new_logs()
        size = len(transactional_batch(1, 0))
        handler = CountingFetches(logs)
        committed = waiting_fetch(handler, 0, committed=True, min_bytes=3 * size)
        await asyncio.sleep(0.01)
        await append(logs, KEY, transactional_batch(1, 0))
        await append(logs, KEY, transactional_batch(2, 0))
        await append(logs, KEY, transactional_batch(3, 0))
        await logs.end_transaction(KEY, end_of(3, committed=True))
        await logs.end_transaction(KEY, end_of(1, committed=True))
        await asyncio.sleep(0.01)
        assert not committed.done() and handler.reads == 1, "only the first batch is stable"
        await logs.end_transaction(KEY, end_of(2, committed=True))
        await asyncio.wait_for(committed, 0.01)
        assert handler.reads == 2

    run(test())


def test_after_a_restart_too_the_end_of_a_transaction_wakes_readers() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = new_logs(disk)
        await append(logs, KEY, transactional_batch(1, 0))
        disk.crash()
        logs = new_logs(disk)
        committed = waiting_fetch(FetchHandler(logs), 0, committed=True)
        await asyncio.sleep(0.01)
        await logs.end_transaction(KEY, end_of(1, committed=True))
        response, _ = await asyncio.wait_for(committed, 0.01)
        assert response.partitions[0].last_stable_offset == 2

    run(test())


# ListOffsets


def test_readers_of_committed_records_find_nothing_behind_the_last_stable_offset() -> None:
    async def test() -> None:
        logs = new_logs(clock=StillClock(500))
        await logs.append(KEY, memoryview(build_batch(timestamps_ms=[100])))
        batch = build_batch(timestamps_ms=[900], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        await append(logs, KEY, memoryview(batch))

        async def found(timestamp: int, isolation_level: int) -> tuple[int, int]:
            request = leader_pb2.ListOffsetsRequest(isolation_level=isolation_level)
            request.partitions.add(topic_id=TOPIC, partition=0, current_leader_epoch=-1, timestamp=timestamp)
            answer = (await ListOffsetsHandler(logs)(request, NOTHING)).partitions[0]
            return answer.error_code, answer.offset

        for timestamp, uncommitted, committed in [(-1, 2, 1), (-2, 0, 0), (50, 0, 0), (500, 1, -1), (-3, 1, -1)]:
            assert (await found(timestamp, 0), await found(timestamp, 1)) == ((0, uncommitted), (0, committed))
        await logs.end_transaction(KEY, end_of(1, committed=True))
        assert [await found(timestamp, 1) for timestamp in (-1, 500, -3)] == [(0, 3), (0, 1), (0, 1)]

    run(test())


def test_the_last_stable_offset_comes_with_the_epoch_of_the_leader() -> None:
    """As Kafka's Partition.fetchOffsetForTimestamp: its record may be of an older epoch."""

    async def test() -> None:
        logs = new_logs()
        await append(logs, KEY, transactional_batch(1, 0))
        logs.on_view(view_of(topic()), view_of(topic(leader_epoch=9), version=2))
        request = leader_pb2.ListOffsetsRequest(isolation_level=1)
        request.partitions.add(topic_id=TOPIC, partition=0, current_leader_epoch=-1, timestamp=-1)
        answer = (await ListOffsetsHandler(logs)(request, NOTHING)).partitions[0]
        assert (answer.error_code, answer.offset, answer.leader_epoch) == (ErrorCode.NONE, 0, 9)

    run(test())


# WriteTxnMarkers


def marker(
    producer_id: int, *keys: TopicPartition, epoch: int = 0, committed: bool = True, coordinator_epoch: int = 0
) -> leader_pb2.WriteTxnMarkersRequest.Marker:
    found = leader_pb2.WriteTxnMarkersRequest.Marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=committed,
        coordinator_epoch=coordinator_epoch,
        transaction_version=1,
    )
    for key in keys:
        found.partitions.add(topic_id=key.topic_id, partition=key.partition)
    return found


async def write_markers(
    logs: PartitionLogs, *markers: leader_pb2.WriteTxnMarkersRequest.Marker
) -> list[tuple[int, int, int]]:
    request = leader_pb2.WriteTxnMarkersRequest(markers=markers)
    response = await WriteTxnMarkersHandler(logs)(request, NOTHING)
    return [(result.producer_id, result.partition, result.error_code) for result in response.results]


def test_every_partition_of_every_marker_has_its_result() -> None:
    async def test() -> None:
        logs = new_logs()
        await append(logs, KEY, transactional_batch(1, 0, epoch=3))
        await append(logs, SECOND, transactional_batch(1, 0, epoch=3))
        await append(logs, SECOND, transactional_batch(2, 0))
        results = await write_markers(
            logs,
            marker(1, KEY, SECOND, ELSEWHERE, TopicPartition(TOPIC, 9), UNKNOWN, epoch=3, committed=False),
            marker(2, SECOND),
            marker(1, KEY, epoch=2),
        )
        assert results == [
            (1, 0, 0),
            (1, 1, 0),
            (1, 2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (1, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (2, 1, 0),
            (1, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        ]
        assert [(log.last_stable_offset, log.high_watermark) for log in map(logs.lookup, (KEY, SECOND))] == [
            (2, 2),
            (4, 4),
        ]
        assert [found.producer_id for found in logs.lookup(SECOND).aborted_transactions(0, 9)] == [1]

    run(test())


def test_an_older_coordinator_is_fenced() -> None:
    async def test() -> None:
        logs = new_logs()
        assert await write_markers(logs, marker(1, KEY, coordinator_epoch=7)) == [(1, 0, 0)]
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await write_markers(logs, marker(1, KEY, coordinator_epoch=6)) == [(1, 0, fenced)]

    run(test())


def test_a_marker_that_is_not_durable_is_not_confirmed() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = new_logs(disk)
        await append(logs, KEY, transactional_batch(1, 0))
        disk.fail_next_writes(1)
        assert await write_markers(logs, marker(1, KEY)) == [(1, 0, ErrorCode.KAFKA_STORAGE_ERROR)]
        assert logs.lookup(KEY).last_stable_offset == 0
        assert await write_markers(logs, marker(1, KEY)) == [(1, 0, 0)]

    run(test())


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (1, -1), (1, 1 << 15), (-(1 << 63), -(1 << 31))])
def test_markers_without_a_valid_producer_are_refused(producer_id: int, epoch: int) -> None:
    async def test() -> None:
        logs = new_logs()
        results = await write_markers(logs, marker(producer_id, KEY, epoch=epoch), marker(5, KEY))
        assert results == [(producer_id, 0, ErrorCode.INVALID_REQUEST), (5, 0, 0)]
        assert logs.lookup(KEY).high_watermark == 1

    run(test())


def test_a_request_with_too_many_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        logs = new_logs()
        results = await write_markers(logs, marker(1, KEY, SECOND), marker(2, KEY))
        assert [code for _, _, code in results] == [ErrorCode.INVALID_REQUEST] * 3
        assert logs.lookup(KEY).high_watermark == 0

    monkeypatch.setattr(write_txn_markers, "PARTITIONS_LIMIT", 2)
    run(test())


# DescribeProducers


def test_producers_are_described() -> None:
    async def test() -> None:
        clock = StillClock(1000)
        logs = new_logs(clock=clock)
        await append(logs, KEY, transactional_batch(1, 0, 3))
        clock.value_ms = 2000
        await append(logs, KEY, transactional_batch(2, 0, epoch=4))
        await logs.end_transaction(KEY, end_of(2, committed=True, epoch=5, coordinator_epoch=8, version=2))
        request = leader_pb2.DescribeProducersRequest()
        for key in (KEY, SECOND, ELSEWHERE, UNKNOWN):
            request.partitions.add(topic_id=key.topic_id, partition=key.partition)
        response = await DescribeProducersHandler(logs)(request, NOTHING)
        assert [(result.topic_id, result.partition, result.error_code) for result in response.results] == [
            (*KEY, 0),
            (*SECOND, 0),
            (*ELSEWHERE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (*UNKNOWN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [bool(result.error_message) for result in response.results] == [False, False, True, True]
        found = [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.current_transaction_start_offset,
            )
            for producer in response.results[0].active_producers
        ]
        assert found == [(1, 0, 2, 1000, -1, 0), (2, 5, -1, 2000, 8, -1)]
        assert not response.results[1].active_producers

    run(test())
