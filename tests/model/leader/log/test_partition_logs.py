"""The logs of a node against plain lists of records, whatever is appended, refused, lost or restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers import pending_appends
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.tail import TailCache
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import TOPIC, open_logs
from support.wire.record_building import build_batch

KEYS = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]


@dataclass(frozen=True)
class Produce:
    """One batch; with `producer_id`, `step` is how far its sequence is from the right one."""

    key: TopicPartition
    values: tuple[bytes, ...]
    first_timestamp_ms: int
    compression: int
    producer_id: int
    step: int


@dataclass(frozen=True)
class Turn:
    """Batches of one turn of the event loop, and whether the disk takes them."""

    batches: tuple[Produce, ...]
    disk_fails: bool


RESTART = "restart"
PRODUCES = st.builds(
    Produce,
    st.sampled_from(KEYS),
    st.lists(st.binary(max_size=120), min_size=1, max_size=6).map(tuple),
    st.integers(1, 2000),
    st.integers(0, 4),
    st.sampled_from([-1, 7, 8]),
    st.sampled_from([0, 0, 0, 0, -1, 1]),
)
TURNS = st.builds(Turn, st.lists(PRODUCES, min_size=1, max_size=4).map(tuple), st.sampled_from([False] * 5 + [True]))
STEPS = st.lists(st.one_of(TURNS, st.just(RESTART)), min_size=1, max_size=25)


@dataclass
class Naive:
    """One partition as a list of (timestamp, value), the starts of its batches, and what each producer sent.

    `unwritten` has, for each producer, the lowest sequence that the disk failed to write: a producer without any
    record has to begin there or below.
    """

    records: list[tuple[int, bytes]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    sent: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    unwritten: dict[int, int] = field(default_factory=dict)

    def next_sequence(self, producer_id: int) -> int:
        sent = self.sent.get(producer_id)
        return sent[-1][0] + sent[-1][1] if sent else 0

    def append(self, batch: Produce, sequence: int) -> int | ErrorCode:
        if batch.producer_id >= 0:
            sent = self.sent.get(batch.producer_id, [])
            if not sent and sequence > self.unwritten.get(batch.producer_id, sequence):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.unwritten.pop(batch.producer_id, None)
            for first, count, offset in sent[-5:]:
                if (first, count) == (sequence, len(batch.values)):
                    return offset
            if sent and sequence != self.next_sequence(batch.producer_id):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.sent[batch.producer_id] = [*sent, (sequence, len(batch.values), len(self.records))]
        offset = len(self.records)
        self.starts.append(offset)
        self.records += [(batch.first_timestamp_ms + index, value) for index, value in enumerate(batch.values)]
        return offset

    def copy(self) -> Naive:
        sent = {key: list(sent) for key, sent in self.sent.items()}
        return Naive(list(self.records), list(self.starts), sent, dict(self.unwritten))

    def failed(self, before: Naive, sequences: Iterable[tuple[int, int]]) -> Naive:
        """The partition `before` a turn of which nothing was written: `sequences` of producers."""
        unwritten = dict(self.unwritten)
        for producer_id, sequence in sequences:
            if producer_id >= 0:
                unwritten[producer_id] = min(sequence, unwritten.get(producer_id, sequence))
        return replace(before, unwritten=unwritten)


async def take_turn(logs: PartitionLogs, turn: Turn, model: dict[TopicPartition, Naive], disk: MemoryDisk) -> None:
    before = {key: naive.copy() for key, naive in model.items()}
    expected: list[int | ErrorCode] = []
    futures: list[asyncio.Future[Appended]] = []
    sequences: dict[TopicPartition, list[tuple[int, int]]] = {key: [] for key in model}
    for batch in turn.batches:
        naive = model[batch.key]
        sequence = max(0, naive.next_sequence(batch.producer_id) + batch.step) if batch.producer_id >= 0 else -1
        data = build_batch(
            batch.values,
            compression=batch.compression,
            timestamps_ms=range(batch.first_timestamp_ms, batch.first_timestamp_ms + len(batch.values)),
            producer_id=batch.producer_id,
            producer_epoch=0 if batch.producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        expected.append(naive.append(batch, sequence))
        sequences[batch.key].append((batch.producer_id, sequence))
        futures.append(logs.append(batch.key, memoryview(data)))
    writes_something = any(len(model[key].records) != len(before[key].records) for key in model)
    if turn.disk_fails and writes_something:
        disk.fail_next_writes(1)
        model.update({key: naive.failed(before[key], sequences[key]) for key, naive in model.items()})
        expected = [ErrorCode.KAFKA_STORAGE_ERROR] * len(expected)
    results = await asyncio.gather(*futures, return_exceptions=True)
    found = [result.code if isinstance(result, KafkaError) else result.base_offset for result in results]  # type: ignore[union-attr]
    assert found == expected
    if writes_something:
        assert bool(logs.problems()) == turn.disk_fails


async def check_reads(logs: PartitionLogs, model: dict[TopicPartition, Naive], fetch_at: float, max_bytes: int) -> None:
    for key, naive in model.items():
        log = logs.find(key)
        assert log is not None
        end = len(naive.records)
        assert (log.log_start_offset, log.high_watermark, log.last_stable_offset) == (0, end, end)
        offset = int(fetch_at * end)
        batches = log.read(offset, max_bytes)
        assert bool(batches) == (offset < end)
        assert len(batches) <= 1 or sum(batch.length for batch in batches) <= max_bytes
        if batches:
            assert batches[0].base_offset == max(start for start in naive.starts if start <= offset)
            got = [record for batch in batches for record in open_records(batch.data)]
            first = batches[0].base_offset
            assert [(record.timestamp_ms, record.value) for record in got] == naive.records[first : first + len(got)]
            assert [record.offset for record in got] == list(range(first, first + len(got)))
            if first + len(got) < end:
                more = log.read(first + len(got), 1)[0].length
                assert sum(batch.length for batch in batches) + more > max_bytes
        await check_look_ups(log, naive, int(fetch_at * 2100))


async def check_look_ups(log: PartitionLog, naive: Naive, timestamp_ms: int) -> None:
    times = [timestamp for timestamp, _ in naive.records]
    expected = next(((time, offset) for offset, time in enumerate(times) if time >= timestamp_ms), None)
    assert await log.offset_for_timestamp(timestamp_ms) == expected
    newest = (max(times), times.index(max(times))) if times else None
    assert await log.offset_of_max_timestamp() == newest


async def run(steps: list[Turn | str], reads: list[tuple[float, int]], tail_bytes: int) -> None:
    disk = MemoryDisk()
    store = disk.open_store("leader")
    model = {key: Naive() for key in KEYS}
    tails = TailCache(partition_limit_bytes=tail_bytes, node_limit_bytes=tail_bytes * 3 // 2, overhead_bytes=0)
    logs = open_logs(store, tails=tails)
    for step in steps:
        if isinstance(step, Turn):
            await take_turn(logs, step, model, disk)
        else:
            logs.close()
            disk.crash()
            logs = open_logs(disk.open_store("leader"), tails=tails)
            for naive in model.values():
                naive.unwritten.clear()
        for fetch_at, max_bytes in reads:
            await check_reads(logs, model, fetch_at, max_bytes)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
@given(
    STEPS,
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2000)), min_size=1, max_size=4),
    st.integers(0, 3000),
    st.sampled_from([1, 200, 1500]),
)
def test_logs_are_what_was_confirmed(
    steps: list[Turn | str], reads: list[tuple[float, int]], tail_bytes: int, index_interval_bytes: int
) -> None:
    usual, pending_appends.INDEX_INTERVAL_BYTES = pending_appends.INDEX_INTERVAL_BYTES, index_interval_bytes
    try:
        asyncio.run(run(steps, reads, tail_bytes))
    finally:
        pending_appends.INDEX_INTERVAL_BYTES = usual
