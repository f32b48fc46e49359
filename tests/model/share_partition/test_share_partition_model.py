"""The share-partition machine against a naive model: one dictionary entry an offset, and a store of the same kind.

After each step the machine's runs must say what the dictionary says. What was confirmed (accepted or rejected with a
durable write) is never delivered again, not even after a restart from what was stored; everything else is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import NEVER, SharePartition
from kshare_leader.machine.state_write import StateBatch, StateWrite
from support.share_partition_script import fetch

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
OWNERS = [Owner("m1", 1, "a"), Owner("m2", 1, "a"), Owner("m2", 2, "b")]
LOCK_MS = 1000
MAX_RECORD_LOCKS = 30
TARGET = {
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
    AcknowledgeType.GAP: RecordState.ARCHIVED,
}


@dataclass
class Record:
    state: RecordState
    count: int
    owner: Owner | None = None
    deadline_ms: int = 0
    pending: tuple[int, RecordState] | None = None


@dataclass
class Store:
    """What a share coordinator would hold."""

    start: int = -1
    records: dict[int, tuple[RecordState, int]] = field(default_factory=dict)

    def apply(self, write: StateWrite) -> None:
        if write.start_offset >= 0:
            self.start = write.start_offset
        for first, last, state, count in write.state_batches:
            assert state is not ACQUIRED
            for offset in range(first, last + 1):
                self.records[offset] = (state, count)
        self.records = {offset: value for offset, value in self.records.items() if offset >= self.start}

    def batches(self) -> list[StateBatch]:
        return [StateBatch(offset, offset, *self.records[offset]) for offset in sorted(self.records)]


class SharePartitionModel(RuleBasedStateMachine):
    @initialize(
        lengths=strategies.lists(strategies.integers(1, 6), min_size=5, max_size=25),
        holes=strategies.lists(strategies.integers(0, 2), min_size=25, max_size=25),
        limit=strategies.integers(2, 5),
    )
    def begin(self, lengths: list[int], holes: list[int], limit: int) -> None:
        self.log: list[tuple[int, int]] = []
        position = 0
        for length, hole in zip(lengths, holes, strict=False):
            position += hole
            self.log.append((position, position + length - 1))
            position += length
        self.exists = {offset for base, last in self.log for offset in range(base, last + 1)}
        self.limit = limit
        self.now_ms = 0
        self.store = Store()
        self.confirmed: set[int] = set()
        self.decided: set[int] = set()
        self.in_flight: StateWrite | None = None
        self.records: dict[int, Record] = {}
        self.machine = SharePartition(start_offset=0, start_is_stored=False)
        write = self.machine.next_write()
        assert write is not None and write[1:] == (0, 0, [])
        self.machine.write_succeeded(write.write_id)
        self.store.apply(write)

    # Steps

    @rule(
        owner=strategies.sampled_from(OWNERS),
        max_records=strategies.integers(1, 12),
        batch_size=strategies.integers(1, 8),
        exact=strategies.booleans(),
        undo=strategies.integers(0, 9),
    )
    def fetch(self, owner: Owner, max_records: int, batch_size: int, exact: bool, undo: int) -> None:
        deliverable = [offset for offset, record in self.records.items() if record.state is AVAILABLE]
        deliverable = [offset for offset in deliverable if offset in self.exists]
        end_before = self.machine.end_offset
        room = self.machine.window < MAX_RECORD_LOCKS and any(offset >= end_before for offset in self.exists)
        limits = FetchLimits(
            owner=owner,
            max_records=max_records,
            batch_size=batch_size,
            record_limit=exact,
            lock_duration_ms=LOCK_MS,
            max_record_locks=MAX_RECORD_LOCKS,
            delivery_count_limit=self.limit,
        )
        acquired = fetch(self.machine, self.log, limits, self.now_ms)
        self.adopt_holes(end_before)
        offsets = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
        assert offsets == sorted(set(offsets))
        assert bool(offsets) == bool(deliverable or room)
        if deliverable:
            assert offsets[0] == min(deliverable)
        assert len(offsets) <= max_records or not exact
        assert len(offsets) < max_records + 6
        self.check_poison(acquired, offsets)
        for first, last, count in acquired:
            for offset in range(first, last + 1):
                assert offset in self.exists and offset not in self.confirmed
                record = self.records.setdefault(offset, Record(AVAILABLE, 0))
                assert record.state is AVAILABLE and count == record.count + 1
                self.records[offset] = Record(ACQUIRED, count, owner, self.now_ms + LOCK_MS)
        if undo == 0:
            self.machine.undo_acquire(owner, acquired)
            for offset in offsets:
                self.records[offset] = Record(AVAILABLE, self.records[offset].count - 1)

    def adopt_holes(self, end_before: int) -> None:
        """Archived by the machine, and rightly so: the log has no such offset. The dictionary follows."""
        for run in self.machine.runs():
            for offset in range(run.first_offset, run.last_offset + 1):
                if run.state is RecordState.ARCHIVED and offset not in self.exists:
                    before = self.records.get(offset, Record(AVAILABLE, 0))
                    assert before.state in (AVAILABLE, RecordState.ARCHIVED), before
                    self.records[offset] = Record(RecordState.ARCHIVED, before.count)
        self.drop_below_start(end_before)

    def check_poison(self, acquired: list[AcquiredRecords], offsets: list[int]) -> None:
        throttle_from = max(2, -(-self.limit // 2))
        for _, _, count in acquired:
            if self.limit > 2 and count >= self.limit:
                assert len(offsets) == 1
            elif count - 1 >= throttle_from:
                assert len(offsets) <= max(1, 6 >> (count - throttle_from))

    @rule(
        owner=strategies.sampled_from(OWNERS),
        first=strategies.integers(0, 30),
        length=strategies.integers(1, 12),
        types=strategies.lists(strategies.sampled_from(list(AcknowledgeType)), min_size=12, max_size=12),
        single=strategies.booleans(),
        take_held=strategies.booleans(),
    )
    def acknowledge(
        self, owner: Owner, first: int, length: int, types: list[AcknowledgeType], single: bool, take_held: bool
    ) -> None:
        first += self.machine.start_offset
        last = first + length - 1
        if take_held:  # mostly something that can succeed
            held = [o for o, r in self.records.items() if r.owner == owner and r.pending is None]
            if held:
                first = min(held)
                last = first
                while last + 1 in held and last + 1 < first + length:
                    last += 1
        chosen = types[:1] if single else types[: last - first + 1]
        ok = all(self.is_held(offset, owner) for offset in range(first, last + 1))
        batch = AcknowledgementBatch(first, last, bytes(chosen))
        try:
            write_id = self.machine.acknowledge(
                owner,
                self.now_ms,
                [batch],
                delivery_count_limit=self.limit,
                lock_duration_ms=LOCK_MS,
                renew_allowed=True,
            )
        except KafkaError as error:
            assert not ok and error.code is ErrorCode.INVALID_RECORD_STATE
            return
        assert ok
        for index, offset in enumerate(range(first, last + 1)):
            kind = chosen[0] if single else chosen[index]
            if kind is AcknowledgeType.RENEW:
                self.records[offset].deadline_ms = self.now_ms + LOCK_MS
            else:
                self.mark(offset, write_id, TARGET[kind], kind is AcknowledgeType.RELEASE)

    def is_held(self, offset: int, owner: Owner) -> bool:
        record = self.records.get(offset)
        if record is None or record.state is not ACQUIRED or record.owner != owner or record.pending:
            return False
        return record.deadline_ms > self.now_ms

    def mark(self, offset: int, write_id: int, target: RecordState, may_archive: bool = True) -> None:
        record = self.records[offset]
        if may_archive and record.count >= self.limit:
            target = RecordState.ARCHIVED
        record.pending = (write_id, target)
        if target.is_terminal:
            self.decided.add(offset)

    @rule(owner=strategies.sampled_from(OWNERS))
    def release(self, owner: Owner) -> None:
        write_id = self.machine.release(owner.__eq__, self.limit)
        marked = False
        for offset, record in self.records.items():
            if record.state is ACQUIRED and record.owner == owner:
                if record.pending is None:
                    self.mark(offset, write_id, AVAILABLE)
                    marked = True
                else:
                    record.deadline_ms = 0
        assert marked == (write_id != NO_WRITE)

    @rule(elapsed_ms=strategies.sampled_from([1, 400, 1000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms

    @rule()
    def expire(self) -> None:
        due = [
            offset
            for offset, record in self.records.items()
            if record.state is ACQUIRED and record.pending is None and record.deadline_ms <= self.now_ms
        ]
        assert not due or self.machine.next_deadline_ms <= self.now_ms
        write_id = self.machine.expire(self.now_ms, self.limit)
        assert bool(due) == (write_id != NO_WRITE)
        for offset in due:
            self.mark(offset, write_id, AVAILABLE)

    @rule()
    def begin_write(self) -> None:
        write = self.machine.next_write()
        if self.in_flight is not None:
            assert write is None
            return
        if write is None:
            assert all(record.pending is None for record in self.records.values())
            return
        self.in_flight = write
        start = self.store.start if write.start_offset < 0 else write.start_offset
        done = max(0, self.machine.start_offset - start)
        for offset, record in self.records.items():
            state = record.state
            if record.pending is not None:
                assert record.pending[0] == write.write_id, "what was gathered goes with this write"
                state = record.pending[1]
            if offset >= start and state.is_terminal:
                done += 1
        assert write.delivery_complete_count == done

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def write_succeeds(self) -> None:
        assert self.in_flight is not None
        write, self.in_flight = self.in_flight, None
        self.store.apply(write)
        self.machine.write_succeeded(write.write_id)
        for offset, record in list(self.records.items()):
            if record.pending is not None and record.pending[0] == write.write_id:
                state = record.pending[1]
                self.records[offset] = Record(state, record.count)
                if state.is_terminal:
                    self.confirmed.add(offset)
        self.drop_below_start(self.machine.end_offset)

    def drop_below_start(self, end: int) -> None:
        """The start offset is the first offset that is not terminal, and moves no further."""
        expected = self.machine.start_offset
        for offset in [offset for offset in self.records if offset < expected]:
            assert self.records.pop(offset).state.is_terminal
        if expected in self.records:
            assert not self.records[expected].state.is_terminal

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def write_fails(self) -> None:
        assert self.in_flight is not None
        write, self.in_flight = self.in_flight, None
        self.machine.write_failed(write.write_id)
        for record in self.records.values():
            if record.pending is not None and record.pending[0] == write.write_id:
                record.pending = None

    @rule(applied=strategies.booleans())
    def restart(self, applied: bool) -> None:
        """The leader is gone; the write in flight took effect or did not."""
        if self.in_flight is not None and applied:
            self.store.apply(self.in_flight)
        self.in_flight = None
        batches = self.store.batches()
        self.machine = SharePartition(start_offset=self.store.start, state_batches=batches)
        end = self.store.start if not batches else batches[-1].last_offset + 1
        self.records = {
            offset: Record(*self.store.records.get(offset, (AVAILABLE, 0)))
            for offset in range(self.machine.start_offset, end)
        }
        assert all(
            self.store.records[offset][0].is_terminal for offset in range(self.store.start, self.machine.start_offset)
        )

    # What always holds

    @invariant()
    def the_machine_says_what_the_dictionary_says(self) -> None:
        said: dict[int, Record] = {}
        position = self.machine.start_offset
        before = None
        for run in self.machine.runs():
            assert run.first_offset == position <= run.last_offset
            assert before is None or not run.says_the_same_as(before)
            pending = (run.write_id, run.target) if run.write_id != NO_WRITE else None
            for offset in range(run.first_offset, run.last_offset + 1):
                said[offset] = Record(run.state, run.delivery_count, run.owner, run.lock_deadline_ms, pending)
            position = run.last_offset + 1
            before = run
        assert position == self.machine.end_offset
        assert said == self.records

    @invariant()
    def counts_are_right(self) -> None:
        states = [record.state for record in self.records.values()]
        assert self.machine.available_count == states.count(AVAILABLE)
        assert self.machine.acquired_count == states.count(ACQUIRED)
        assert self.machine.delivery_complete_count == sum(state.is_terminal for state in states)

    @invariant()
    def no_lock_is_forgotten(self) -> None:
        deadlines = [r.deadline_ms for r in self.records.values() if r.state is ACQUIRED and r.pending is None]
        assert self.machine.next_deadline_ms <= min(deadlines, default=NEVER)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Below the stored start, and stored as terminal, is only what was confirmed or does not exist."""
        stored_done = {offset for offset, (state, _) in self.store.records.items() if state.is_terminal}
        skipped = {offset for offset in self.exists if offset < self.store.start} | (stored_done & self.exists)
        assert skipped <= self.decided, "a record that nobody decided on is never skipped"
        assert self.confirmed <= skipped
        offsets = sorted(self.store.records)
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True


SharePartitionModel.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestSharePartitionModel = SharePartitionModel.TestCase
