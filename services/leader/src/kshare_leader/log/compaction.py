"""Compaction: in closed segments, only the newest record of each key stays (cleanup.policy=compact).

The rules of Kafka 4.3's Cleaner, LogCleanerManager and MemoryRecords.filterTo:

- the active segment, segments younger than min.compaction.lag.ms and all from the last stable offset on stay untouched;
- a log is due when more than min.cleanable.dirty.ratio of its bytes were appended since the last run, or when a record
  waits for longer than max.compaction.lag.ms;
- a tombstone (null value) stays until delete.retention.ms after the first compaction that processed it; that time, the
  delete horizon, is in its batch's header;
- records of aborted transactions are removed; a transaction's marker stays while it has records, then until its
  horizon;
- a batch keeps its offsets; a batch without records is removed. Small adjacent segments are merged.

**How.** A run has two passes. The first goes over the dirty part and notes the newest offset of each key, at most
`keys_limit` keys; the next run does the rest of a log with more. The second goes over the log from its start and writes
back each batch with the records that stay. Both work in slices of SLICE_BYTES and yield to the event loop between them.
Each slice of the second pass is one atomic write. Within a batch of very many records a run also yields between pieces
of keys; such a batch is decompressed, read and rewritten on a thread, and a smaller one is compressed again there. At
the end the index of timestamps keeps one entry for each INDEX_INTERVAL_BYTES of batches that stay. It would otherwise
grow with all that was ever appended.

A crash, a new log start or a closed log may end a run early. Then some superseded records are removed and others are
not, which compaction permits: the newest record of a key is never touched, a value is removed before or together with
the tombstone that deleted it, and the run is repeated.

Kafka keeps an empty batch to remember a producer's last sequence or the log's end; both have their own rows here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.producers.pending_appends import INDEX_INTERVAL_BYTES
from kshare_leader.log.record_reader import LOWEST_TIMESTAMP, RecordReader
from kshare_leader.log.segments import Segment, after_batch
from kshare_leader.log.topic_settings import MAX_LONG
from kshare_leader.ports import AbortedTransaction, StoredBatch
from kshare_wire.batch_rewriting import batch_with_records, delete_horizon_ms
from kshare_wire.record_batches import NO_TIMESTAMP, BatchHeader, read_header
from kshare_wire.record_reading import open_records
from kshare_wire.record_walks import KeyPiece, OpenedBatch, take_keys

SLICE_BYTES = 256 * 1024
SLICE_RECORDS = 5_000
"""A slice ends with the batch that reaches one of the two; 5,000 records take about 10 ms."""

MUCH_BYTES = 64 * 1024
"""Decompressed bytes of a batch after which others take their turn."""

ABORT, COMMIT = 0, 1
"""Types of transaction markers (ControlRecordType): the last two bytes of the record's key."""

_DIGEST_BYTES = 16

Step = int | Callable[[], object]
"""The steps that a run yields to its driver.

Either the bytes that a slice has read, or long work, which the driver runs on a thread and whose result it sends back.
"""
Steps = Generator[Step, Any, None]


class CompactionPlan(NamedTuple):
    """The plan of a compaction of one log."""

    first_dirty_offset: int
    end_offset: int
    """The base offset of the first segment that must stay as it is."""
    dirty_ratio: float
    is_due: bool


class CompactionAborted(Exception):
    """The log was closed, is being reassigned, or was changed during the run; this is not an error."""


def plan_compaction(log: PartitionLog, now_ms: int) -> CompactionPlan:
    """The segments that can be compacted now, and whether the log is due."""
    settings, closed = log.settings, log.segments.closed
    first_dirty_offset = log.first_dirty_offset
    bound = min(log.last_stable_offset, log.segments.active.base_offset)
    if settings.min_compaction_lag_ms > 0:
        young_ms = now_ms - settings.min_compaction_lag_ms
        young = [row.base_offset for row in closed if row.end_offset > first_dirty_offset and row.newest_ms > young_ms]
        bound = min([bound, *young])
    cleanable = [row for row in closed if row.end_offset <= bound]
    dirty = [row for row in cleanable if row.end_offset > first_dirty_offset]
    dirty_bytes = sum([row.size_bytes for row in dirty])
    clean_bytes = sum([row.size_bytes for row in log.segments if row.base_offset < first_dirty_offset])
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    waiting = [row for row in closed if row.end_offset > first_dirty_offset and row.first_timestamp_ms > 0]
    overdue_ms = now_ms - settings.max_compaction_lag_ms
    is_overdue = any([row.first_timestamp_ms < overdue_ms for row in waiting])
    is_due = dirty_bytes > 0 and (is_overdue or ratio > settings.min_cleanable_dirty_ratio)
    end_offset = max([row.end_offset for row in dirty], default=first_dirty_offset)
    return CompactionPlan(first_dirty_offset, end_offset, ratio, is_due)


class CleanedTransactions:
    """The transactions of a run: which batches are of aborted ones, and which markers have no records left."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(aborted, key=lambda transaction: transaction.first_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._with_records: dict[int, None] = {}
        """Producers with batches since their last marker."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch is of an aborted transaction; to be called for each one in the log's order."""
        if not header.is_transactional:
            return False
        self._with_records[header.producer_id] = None
        transactions = self._aborted.get(header.producer_id, [])
        index = bisect_right(transactions, header.base_offset, key=lambda transaction: transaction.first_offset) - 1
        return index >= 0 and header.base_offset <= transactions[index].last_offset

    def is_without_records(self, header: BatchHeader, data: bytes) -> bool:
        """Whether a marker's transaction has no records left; to be called for each control batch in log order."""
        record = next(open_records(data), None)
        if record is None or record.key is None or int.from_bytes(record.key[2:4], "big") not in (ABORT, COMMIT):
            return False
        has_records = header.producer_id in self._with_records
        self._with_records.pop(header.producer_id, None)
        return not has_records


class NewestOffsets:
    """The newest offset of each key of the dirty part, by a digest of the key."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        self.end_offset = 0
        """All records of the dirty part below this offset were noted."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_digest(key)] = offset

    def is_superseded(self, key: bytes, offset: int) -> bool:
        return self._offsets.get(_digest(key), -1) > offset


class BatchFilter:
    """The filter of a run, which keeps, rewrites or removes each batch; batches must come in the log's order."""

    def __init__(
        self,
        newest: NewestOffsets,
        transactions: CleanedTransactions,
        reader: RecordReader,
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = newest
        self._transactions = transactions
        self._reader = reader
        self._now_ms = now_ms
        self._new_horizon_ms = min(now_ms + delete_retention_ms, MAX_LONG)

    def filter(self, batch: StoredBatch) -> Generator[Step, Any, StoredBatch | None]:
        """The filtered batch: itself where it is unchanged, None where no record stays. KafkaError CORRUPT_MESSAGE."""
        header = read_header(batch.data)
        horizon_ms = delete_horizon_ms(header)
        if header.is_control:
            return self._marker(batch, header, horizon_ms)
        if self._transactions.is_aborted(header):
            return None
        opened, is_large = yield from open_stepwise(self._reader, batch)
        flags = bytearray()
        has_tombstone = False
        position = 0
        while position < len(opened.records):
            position, entries = yield from _next_keys(opened, position, is_large)
            for delta, key, is_null in entries:
                stays = self._stays(header.base_offset + delta, key, is_null, horizon_ms)
                flags.append(stays)
                has_tombstone = has_tombstone or (stays and is_null)
            if position < len(opened.records):
                yield 0
        if not any(flags):
            return None
        needs_horizon = horizon_ms is None and has_tombstone
        if all(flags) and not needs_horizon:
            return batch
        rewrite = partial(batch_with_records, opened, flags, self._new_horizon_ms if needs_horizon else horizon_ms)
        data = (yield rewrite) if is_large or self._reader.compresses_long(opened) else rewrite()
        return batch._replace(data=data)

    def _marker(self, batch: StoredBatch, header: BatchHeader, horizon_ms: int | None) -> StoredBatch | None:
        if not self._transactions.is_without_records(header, batch.data):
            return batch
        if horizon_ms is None:
            opened = self._reader.open(batch)
            return batch._replace(data=batch_with_records(opened, b"\1" * header.record_count, self._new_horizon_ms))
        return None if horizon_ms <= self._now_ms else batch

    def _stays(self, offset: int, key: bytes | None, is_null: bool, horizon_ms: int | None) -> bool:
        if offset >= self._newest.end_offset:
            return True
        if key is None or self._newest.is_superseded(key, offset):
            return False
        return not is_null or horizon_ms is None or self._now_ms < horizon_ms


def open_stepwise(reader: RecordReader, batch: StoredBatch) -> Generator[Step, Any, tuple[OpenedBatch, bool]]:
    """The opened batch, and whether it is too large for the event loop. KafkaError CORRUPT_MESSAGE."""
    opened = reader.try_open(batch)
    if opened is not None:
        if len(opened.records) > MUCH_BYTES and opened.header.compression:
            yield 0  # a slice has many batches of so few bytes
        return opened, False
    opened = yield partial(reader.open, batch)
    return opened, True


def _next_keys(opened: OpenedBatch, position: int, is_large: bool) -> Generator[Step, Any, KeyPiece]:
    """The next piece of keys; of a large batch, one record may have more headers than the event loop has time for."""
    take = partial(take_keys, opened, position)
    return (yield take) if is_large else take()


class LogCompaction:
    """One run over one log."""

    def __init__(self, log: PartitionLog, plan: CompactionPlan, *, now_ms: int, keys_limit: int) -> None:
        self._log = log
        self._reader = log.reader
        self._plan = plan
        self._now_ms = now_ms
        self._keys_limit = keys_limit
        self._version = log.segments.version
        self._newest = NewestOffsets()
        self._index_cuts: list[int] = []
        """The offset after each INDEX_INTERVAL_BYTES of the batches that stay."""
        self._uncut_bytes = 0
        self.removed_bytes = 0

    def steps(self) -> Steps:
        """Runs the compaction as a generator of `Step`s. The log may be used and changed in between.

        CompactionAborted; KafkaError where a batch cannot be opened; StorageFailure.
        """
        yield from self._note_keys()
        batch_filter = BatchFilter(
            self._newest,
            self._transactions(self._log.log_start_offset),
            self._reader,
            now_ms=self._now_ms,
            delete_retention_ms=self._log.settings.delete_retention_ms,
        )
        groups = self._groups()
        for group in groups:
            yield from self._clean_group(group, batch_filter)
        if groups:
            yield from self._thin_index(groups[-1][-1].end_offset)
        self._check()
        self._log.mark_clean(self._newest.end_offset)

    def _transactions(self, first_offset: int) -> CleanedTransactions:
        return CleanedTransactions(self._log.aborted_transactions(first_offset, self._plan.end_offset))

    def _check(self) -> None:
        log = self._log
        is_other = log.is_closed or log.is_moving or log.segments.version != self._version
        if is_other or not log.settings.compacts:
            raise CompactionAborted

    def _take(self, offset: int, end_offset: int) -> list[StoredBatch]:
        """The next slice's batches."""
        self._check()
        taken: list[StoredBatch] = []
        if offset >= end_offset:
            return taken
        size_bytes = record_count = 0
        for batch in self._log.stored_batches(offset, end_offset):
            taken.append(batch)
            size_bytes += batch.length
            record_count += read_header(batch.data).record_count
            if size_bytes >= SLICE_BYTES or record_count >= SLICE_RECORDS:
                break
        return taken

    def _note_keys(self) -> Steps:
        newest, position, end_offset = self._newest, self._plan.first_dirty_offset, self._plan.end_offset
        transactions = self._transactions(position)
        while len(newest) < self._keys_limit:
            batches = self._take(position, end_offset)
            if not batches:
                newest.end_offset = end_offset
                return
            for batch in batches:
                header = read_header(batch.data)
                if not header.is_control and not transactions.is_aborted(header):
                    yield from self._note_batch(batch, header)
                    if len(newest) >= self._keys_limit:
                        return
                newest.end_offset = position = batch.last_offset + 1
            yield sum([batch.length for batch in batches])

    def _note_batch(self, batch: StoredBatch, header: BatchHeader) -> Steps:
        """Notes keys up to the batch's end or the limit `keys_limit`, which a single batch may reach."""
        newest, first_offset = self._newest, self._plan.first_dirty_offset
        opened, is_large = yield from open_stepwise(self._reader, batch)
        position = 0
        newest.end_offset = max(first_offset, header.base_offset)
        while position < len(opened.records):
            position, entries = yield from _next_keys(opened, position, is_large)
            for delta, key, _ in entries:
                offset = header.base_offset + delta
                if offset < first_offset:
                    continue
                if key is not None:
                    newest.put(key, offset)
                newest.end_offset = offset + 1
                if len(newest) >= self._keys_limit:
                    return
            if position < len(opened.records):
                yield 0

    def _groups(self) -> list[list[Segment]]:
        """Adjacent segments to merge: as many as segment.bytes allows by their sizes before compaction."""
        groups: list[list[Segment]] = []
        size_bytes = 0
        for row in self._log.segments.closed:
            if row.base_offset >= self._newest.end_offset or row.end_offset > self._plan.end_offset:
                break
            size_bytes += row.size_bytes
            if not groups or size_bytes > self._log.settings.segment_bytes:
                groups.append([])
                size_bytes = row.size_bytes
            groups[-1].append(row)
        return groups

    def _clean_group(self, group: list[Segment], batch_filter: BatchFilter) -> Steps:
        cleaned: list[Segment] = []
        for row in group:
            cleaned.append((yield from self._clean_segment(row, batch_filter)))
        if len(cleaned) > 1:
            self._check()
            self._log.rewrite({}, cleaned, _merged(cleaned))

    def _thin_index(self, end_offset: int) -> Steps:
        """Leaves one entry of the index of timestamps before each cut, the last of which is the run's end offset."""
        self._index_cuts.append(end_offset)
        first_ms: int | None = LOWEST_TIMESTAMP
        while first_ms is not None:
            self._check()
            first_ms = self._log.thin_index(self._index_cuts, first_ms)
            yield 0

    def _cut_index(self, end_offset: int, kept_bytes: int) -> None:
        self._uncut_bytes += kept_bytes
        if self._uncut_bytes >= INDEX_INTERVAL_BYTES:
            self._index_cuts.append(end_offset)
            self._uncut_bytes = 0

    def _clean_segment(self, row: Segment, batch_filter: BatchFilter) -> Generator[Step, Any, Segment]:
        """Writes back the records of one segment that stay; returns the segment's new row."""
        log, end_offset = self._log, row.end_offset
        position = max(row.base_offset, log.log_start_offset)
        exact = row._replace(size_bytes=0, largest_timestamp_ms=NO_TIMESTAMP, first_timestamp_ms=NO_TIMESTAMP)
        while position < end_offset:
            batches = self._take(position, end_offset)
            position = batches[-1].last_offset + 1 if batches else end_offset
            changes: dict[int, StoredBatch | None] = {}
            removed_markers: list[int] = []
            removed_bytes = 0
            for batch in batches:
                kept = yield from batch_filter.filter(batch)
                if kept is not batch:
                    changes[batch.base_offset] = kept
                    removed_bytes += batch.length - (0 if kept is None else kept.length)
                    if kept is None and batch.is_control:
                        removed_markers.append(batch.base_offset)
                if kept is not None:
                    newest_ms = read_header(kept.data).max_timestamp_ms
                    exact = after_batch(exact, kept.base_offset, end_offset, kept.length, newest_ms, row.last_append_ms)
                    self._cut_index(kept.last_offset + 1, kept.length)
            self._check()
            # Half-way, the row tells the size that is left; its times stay those of the whole segment.
            now = exact if position >= end_offset else row._replace(size_bytes=row.size_bytes - removed_bytes)
            if changes or now != row:
                log.rewrite(changes, [row], now, removed_markers=removed_markers)
                row = now
            self.removed_bytes += removed_bytes
            yield sum([batch.length for batch in batches])
        return row


def _merged(rows: list[Segment]) -> Segment:
    """Adjacent segments merged into one."""
    newest = max(rows, key=lambda row: row.largest_timestamp_ms)  # the first of several
    first = next((row for row in rows if row.size_bytes), rows[0])
    return rows[0]._replace(
        end_offset=rows[-1].end_offset,
        size_bytes=sum([row.size_bytes for row in rows]),
        largest_timestamp_ms=newest.largest_timestamp_ms,
        newest_base_offset=newest.newest_base_offset,
        first_timestamp_ms=first.first_timestamp_ms,
        last_append_ms=max([row.last_append_ms for row in rows]),
    )


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
