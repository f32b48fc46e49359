"""One log with appends, transactions, retention and compaction step by step, and a naive log to compare with.

`HousekeptLog` drives a PartitionLog on a MemoryDisk. `NaiveLog` keeps every record that was ever appended and knows,
for each key, which value a reader of committed records must end up with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kshare_leader.log.compaction import CompactionAborted, LogCompaction, plan_compaction
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.producers.state import TransactionalAppend
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_leader.log.retention import retained_from
from kshare_leader.log.tail import TailCache
from kshare_leader.log.topic_settings import TopicSettings
from kshare_leader.ports import StoredBatch
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import KEY
from support.wire.record_building import build_batch, checked

VERIFIED = TransactionalAppend(None, is_verification_required=False)


class HousekeptLog:
    """A log, its disk and its clock."""

    def __init__(self, settings: TopicSettings, *, tail_bytes: int = 1 << 20, now_ms: int = 1_000_000) -> None:
        self.settings = settings
        self.now_ms = now_ms
        self.disk = MemoryDisk()
        self.store = self.disk.open_store("leader")
        self._tail_bytes = tail_bytes
        self._sequences: dict[int, int] = {}
        self.log = self._open()

    def _open(self) -> PartitionLog:
        tails = TailCache(partition_limit_bytes=self._tail_bytes, node_limit_bytes=self._tail_bytes, overhead_bytes=0)
        return PartitionLog(key=KEY, store=self.store, tails=tails, settings=self.settings, leader_epoch=3)

    def restart(self) -> None:
        """The node crashes, and comes back."""
        self.log.close()
        self.disk.crash()
        self.store = self.disk.open_store("leader")
        self.log = self._open()

    def append(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        compression: int = 0,
        producer_id: int = -1,
    ) -> int:
        """One batch, of an open transaction of `producer_id` where that is given; its base offset."""
        sequence = self._sequences.get(producer_id, 0)
        batch = build_batch(
            values,
            keys=keys,
            timestamps_ms=[self.now_ms] * len(values) if timestamps_ms is None else timestamps_ms,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
        self._sequences[producer_id] = sequence + len(values)
        pending = self.log.begin(self.now_ms)
        appended = self.log.prepare(
            checked(batch, self.settings, self.now_ms), self.now_ms, pending, VERIFIED if producer_id >= 0 else None
        )
        self._write(list(self.log.writes(pending)))
        self.log.commit(pending)
        return appended.base_offset

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        pending = self.log.begin(self.now_ms)
        self.log.prepare_end(EndTransaction(producer_id, 0, committed, 1, 1), self.now_ms, pending)
        self._write(list(self.log.writes(pending)))
        self.log.commit(pending)

    def move_start(self, offset: int) -> None:
        change = self.log.plan_start(offset)
        if change is not None:
            self._write(change.writes)
            self.log.commit_start(change)

    def retain(self) -> None:
        self.log.segments.note_time(self.now_ms)
        self.move_start(retained_from(self.log.segments, self.settings, self.now_ms, self.log.high_watermark))

    def compact(self, *, slices: int | None = None, keys_limit: int = 1_000, only_if_due: bool = False) -> int:
        """A run, or the beginning of one; returns up to where the log must stay as it is."""
        plan = plan_compaction(self.log, self.now_ms)
        if not only_if_due or plan.is_due:
            for count, _ in enumerate(self.compaction(keys_limit=keys_limit)):
                if count + 1 == slices:
                    break
        return plan.end_offset

    def compaction(self, *, keys_limit: int = 1_000) -> Iterator[int]:
        """The slices of a run; it ends early where the log became another one. Work that takes long is done here."""
        plan = plan_compaction(self.log, self.now_ms)
        steps = LogCompaction(self.log, plan, now_ms=self.now_ms, keys_limit=keys_limit).steps()
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except (CompactionAborted, StopIteration):
                return
            result = None
            if isinstance(step, int):
                yield step
            else:
                result = step()

    def batches(self) -> list[StoredBatch]:
        """All that can be read, in one piece and from each place where a reader may go on."""
        found = self.log.read(0, 1 << 30)
        assert self.log.read(self.log.log_start_offset, 1 << 30) == found
        return found

    def stored(self) -> list[StoredBatch]:
        """All that can be read from disk alone."""
        return list(self.log.stored_batches(self.log.log_start_offset, self.log.high_watermark))

    def _write(self, writes: list[Write]) -> None:
        if writes:
            self.store.write(writes)


@dataclass(frozen=True)
class NaiveRecord:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    producer_id: int = -1


@dataclass
class NaiveLog:
    """Every record by offset, the batches' limits, how transactions ended, and where the log starts."""

    records: dict[int, NaiveRecord] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    """Last offsets by base offset."""
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: dict[int, None] = field(default_factory=dict)
    markers: dict[int, None] = field(default_factory=dict)
    start_offset: int = 0
    end_offset: int = 0

    def append(self, records: Sequence[NaiveRecord]) -> None:
        self.batches[self.end_offset] = self.end_offset + len(records) - 1
        for record in records:
            self.records[self.end_offset] = record
            if record.producer_id >= 0:
                self.open.setdefault(record.producer_id, []).append(self.end_offset)
            self.end_offset += 1

    def end(self, producer_id: int, *, committed: bool) -> None:
        offsets = self.open.pop(producer_id)
        if not committed:
            self.aborted.update(dict.fromkeys(offsets))
        self.markers[self.end_offset] = None
        self.batches[self.end_offset] = self.end_offset
        self.end_offset += 1

    def last_stable_offset(self) -> int:
        return max(self.start_offset, min([offsets[0] for offsets in self.open.values()], default=self.end_offset))

    def committed(self, end_offset: int) -> dict[int, NaiveRecord]:
        """What readers of committed records below `end_offset` may see at most."""
        return {
            offset: record
            for offset, record in self.records.items()
            if self.start_offset <= offset < end_offset and offset not in self.aborted
        }

    def newest(self, end_offset: int) -> dict[bytes, bytes | None]:
        """The newest committed value of each key below `end_offset`."""
        return {record.key: record.value for record in self.committed(end_offset).values() if record.key is not None}


def readable_records(log: HousekeptLog, naive: NaiveLog) -> dict[int, NaiveRecord]:
    """The records of all readable batches from the log start on; each must be what was appended at its offset."""
    found: dict[int, NaiveRecord] = {}
    end_before = -1
    for batch in log.batches():
        assert naive.batches[batch.base_offset] == batch.last_offset, "a batch keeps its offsets"
        assert batch.base_offset > end_before
        end_before = batch.last_offset
        if batch.is_control:
            assert batch.base_offset in naive.markers
            continue
        for record in open_records(batch.data):
            appended = naive.records[record.offset]
            assert (record.key, record.value, record.timestamp_ms) == (
                appended.key,
                appended.value,
                appended.timestamp_ms,
            )
            assert batch.producer_id == appended.producer_id
            if record.offset >= log.log.log_start_offset:
                found[record.offset] = appended
    return found


def committed_view(log: HousekeptLog, found: dict[int, NaiveRecord]) -> dict[bytes, bytes]:
    """What a reader of committed records ends up with: the newest value of each key, without tombstones."""
    stable = log.log.last_stable_offset
    aborted = log.log.aborted_transactions(log.log.log_start_offset, max(stable, 1))
    view: dict[bytes, bytes] = {}
    for offset, record in sorted(found.items()):
        is_aborted = any(
            entry.producer_id == record.producer_id and entry.first_offset <= offset <= entry.last_offset
            for entry in aborted
        )
        if offset >= stable or is_aborted or record.key is None:
            continue
        view.pop(record.key, None)
        if record.value is not None:
            view[record.key] = record.value
    return view
