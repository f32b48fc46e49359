"""The share-partition machine against a naive model: one dictionary entry an offset, and a store of the same kind.

After each step the machine's runs must say what the dictionary says. What was confirmed (accepted or rejected with a
durable write) is never delivered again, not even after a restart from what was stored; everything else is.

`make model-slow` takes many more steps than `make test`; the number is counted, and asserted at the end.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kshare_core.errors import KafkaError
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import NEVER, SharePartition
from kshare_leader.machine.state_write import StateBatch, StateWrite
from kshare_leader.machine.transitions import EVENT_OF_ACKNOWLEDGEMENT, ArchivingReason
from support.leader.share.group_limits import group_limits
from support.leader.share.naive_share_partition import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    NO_END,
    TERMINAL,
    NaiveSharePartition,
    NaiveStore,
    Record,
)

OWNERS = [Owner("m1", 1, "a"), Owner("m2", 1, "a"), Owner("m2", 2, "b")]
TARGETS: dict[int, tuple[RecordState, ArchivingReason | None]] = {
    AcknowledgeType.ACCEPT: (ACKNOWLEDGED, None),
    AcknowledgeType.RELEASE: (AVAILABLE, None),
    AcknowledgeType.REJECT: (ARCHIVED, ArchivingReason.REJECTED),
    AcknowledgeType.GAP: (ARCHIVED, None),
}
STEPS_PER_EXAMPLE = 60
QUICK_STEPS, SLOW_STEPS = 5_000, 100_000

owners = strategies.sampled_from(OWNERS)
all_types = strategies.lists(strategies.sampled_from(list(AcknowledgeType)), min_size=12, max_size=12)
stored_runs = strategies.lists(
    strategies.tuples(
        strategies.integers(1, 7),
        strategies.sampled_from([AVAILABLE, AVAILABLE, AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED]),
        strategies.sampled_from([1, 1, 1, 2, 3, 4]),
    ),
    max_size=5,
)
log_batches = strategies.lists(strategies.tuples(strategies.integers(0, 2), strategies.integers(1, 6)), max_size=8)


class SharePartitionModel(RuleBasedStateMachine):
    steps_taken = 0
    """Of all examples together."""

    @initialize(
        batches=log_batches,
        limit=strategies.integers(2, 5),
        stored=stored_runs,
        window_limit=strategies.sampled_from([10, 25, 10_000]),
        state_batches_limit=strategies.sampled_from([1, 2, 4, 10_000]),
    )
    def begin(
        self,
        batches: list[tuple[int, int]],
        limit: int,
        stored: list[tuple[int, RecordState, int]],
        window_limit: int,
        state_batches_limit: int,
    ) -> None:
        """With a start offset that is not stored yet, or with states of an earlier leader."""
        self.window_limit = window_limit
        self.state_batches_limit = state_batches_limit
        self.log: list[tuple[int, int]] = []
        self.exists: set[int] = set()
        self.log_end = 0
        self.log_start = 0
        self.extend_log([(0, 3), (0, 1), (1, 2), *batches])
        self.limit = limit
        self.max_record_locks = 30
        self.lock_duration_ms = 1000
        self.now_ms = 0
        self.fetch_number = 0
        self.delivered = 0
        self.fetched: list[tuple[Owner, list[AcquiredRecords]]] = []
        self.confirmed: set[int] = set()
        self.decided: set[int] = set()
        self.in_flight: StateWrite | None = None
        self.continued = NO_WRITE
        """The id of a durable write that the next one must continue."""
        self.awaited: set[int] = set()
        """Ids of writes that somebody waits for; each must come and end."""
        self.store = NaiveStore()
        if stored:
            self.begin_with([(state, count) for length, state, count in stored for _ in range(length)])
            return
        self.naive = self.new_naive(0)
        self.machine = SharePartition(
            start_offset=0,
            start_is_stored=False,
            window_limit=window_limit,
            state_batches_limit=state_batches_limit,
        )
        write = self.machine.next_write()
        assert write is not None and write[1:] == (0, 0, [], False)
        self.machine.write_succeeded(write.write_id)
        self.store.apply(write)

    def begin_with(self, stored: list[tuple[RecordState, int]]) -> None:
        self.store = NaiveStore(0, dict(enumerate(stored)))
        while self.log_end < len(stored):
            self.extend_log([(0, 4)])
        self.confirmed = {offset for offset, (state, _) in enumerate(stored) if state is not AVAILABLE}
        self.decided = set(self.confirmed)
        self.start_from_the_store(self.store.batches())

    def start_from_the_store(self, batches: list[StateBatch]) -> None:
        self.machine = SharePartition(
            start_offset=self.store.start,
            state_batches=batches,
            window_limit=self.window_limit,
            state_batches_limit=self.state_batches_limit,
        )
        self.naive = self.new_naive(self.store.start)

    def new_naive(self, start: int) -> NaiveSharePartition:
        return NaiveSharePartition(
            start,
            self.store.records,
            window_limit=self.window_limit,
            state_batches_limit=self.state_batches_limit,
        )

    def extend_log(self, batches: list[tuple[int, int]]) -> None:
        for hole, length in batches:
            base = self.log_end + hole
            self.log.append((base, base + length - 1))
            self.exists.update(range(base, base + length))
            self.log_end = base + length

    # The log and the configs

    @precondition(lambda self: self.log_end < self.machine.end_offset + 20)
    @rule(batches=log_batches)
    def produce(self, batches: list[tuple[int, int]]) -> None:
        self.extend_log([*batches, (0, 3), (0, 2)])

    @rule(index=strategies.integers(0, 3))
    def compact(self, index: int) -> None:
        """A batch in flight is gone; the last one of a log never is."""
        in_flight = [batch for batch in self.log[:-1] if batch[1] >= self.machine.start_offset]
        for base, last in in_flight[index : index + 1]:
            self.log.remove((base, last))
            self.exists.difference_update(range(base, last + 1))

    @precondition(lambda self: self.machine.window > 8)
    @rule(distance=strategies.integers(1, 12))
    def remove_from_log(self, distance: int) -> None:
        """Retention, or DeleteRecords."""
        self.log_start = min(max(self.log_start, self.machine.start_offset + distance), self.log_end)
        self.log = [(max(base, self.log_start), last) for base, last in self.log if last >= self.log_start]
        self.exists = {offset for offset in self.exists if offset >= self.log_start}
        self.machine.remove_below(self.log_start)
        self.naive.remove_below(self.log_start)

    @rule(
        limit=strategies.integers(2, 5),
        max_record_locks=strategies.sampled_from([5, 12, 30, 60]),
        lock_duration_ms=strategies.sampled_from([500, 1000, 3000]),
    )
    def change_configs(self, limit: int, max_record_locks: int, lock_duration_ms: int) -> None:
        self.limit = limit
        self.max_record_locks = max_record_locks
        self.lock_duration_ms = lock_duration_ms

    # Acquiring

    @rule(
        owner=owners,
        max_records=strategies.integers(1, 12),
        batch_size=strategies.integers(1, 8),
        exact=strategies.booleans(),
        undo=strategies.integers(0, 9),
        read_batches=strategies.integers(1, 4),
    )
    def fetch(self, owner: Owner, max_records: int, batch_size: int, exact: bool, undo: int, read_batches: int) -> None:
        found = self.fetch_some(owner, max_records, batch_size, exact, read_batches)
        if undo == 0:
            self.machine.undo_acquire(owner, found)
            self.naive.undo_acquire(owner, self.offsets_of(found))

    def fetch_some(
        self, owner: Owner, max_records: int, batch_size: int, exact: bool, read_batches: int
    ) -> list[AcquiredRecords]:
        """As the leader's shell: reads the log a few batches at a time, at the places that the machine names."""
        self.fetch_number += 1
        cursor = self.machine.start_offset
        found: list[AcquiredRecords] = []
        assert self.machine.has_deliverable(self.log_end, group_limits(max_record_locks=self.max_record_locks)) == (
            bool(self.naive.offsets_in(AVAILABLE))
            or (self.naive.end < self.log_end and self.naive.end - self.naive.start < self.max_record_locks)
        )
        while len(self.offsets_of(found)) < max_records:
            position = self.machine.next_fetch(cursor, group_limits(max_record_locks=self.max_record_locks))
            assert position == self.naive.next_fetch(cursor, self.max_record_locks)
            if position is None:
                break
            batches = [batch for batch in self.log if batch[1] >= position.offset][:read_batches]
            if not batches:
                break
            cursor = batches[-1][1] + 1
            limits = self.limits(owner, max_records - len(self.offsets_of(found)), batch_size, exact)
            acquired, complete = self.machine.acquire(limits, self.now_ms, position.offset, batches, cursor)
            expected = self.naive.acquire(limits, self.now_ms, position.offset, batches, cursor)
            assert (self.offsets_of(acquired), complete) == expected
            assert list(expected[0]) == sorted(expected[0])
            self.check_entries(acquired, batch_size, exact)
            found.extend(acquired)
            if complete:
                break
        assert set(self.offsets_of(found)) <= self.exists - self.confirmed
        self.fetched = [*self.fetched[-5:], (owner, found)]
        return found

    @rule(owner=owners, max_records=strategies.integers(5, 20))
    def fetch_much(self, owner: Owner, max_records: int) -> None:
        self.fetch_some(owner, max_records, 5, False, 4)

    @precondition(lambda self: self.fetched)
    @rule(index=strategies.integers(0, 5))
    def undo_late(self, index: int) -> None:
        """An answer that was under way for a while did not arrive."""
        for owner, found in self.fetched[index : index + 1]:
            self.machine.undo_acquire(owner, found)
            self.naive.undo_acquire(owner, self.offsets_of(found))

    def limits(self, owner: Owner, max_records: int, batch_size: int, exact: bool) -> FetchLimits:
        return FetchLimits(
            owner=owner,
            max_records=max_records,
            batch_size=batch_size,
            record_limit=exact,
            fetch_number=self.fetch_number,
            group=group_limits(
                lock_duration_ms=self.lock_duration_ms,
                max_record_locks=self.max_record_locks,
                delivery_count_limit=self.limit,
            ),
        )

    def offsets_of(self, acquired: list[AcquiredRecords]) -> dict[int, int]:
        return {offset: count for first, last, count in acquired for offset in range(first, last + 1)}

    def check_entries(self, acquired: list[AcquiredRecords], batch_size: int, exact: bool) -> None:
        """An entry ends at the first batch boundary at or after `batch_size` records."""
        bases = {base for base, _ in self.log}
        for first, last, _ in acquired:
            if not exact:
                assert not any(first + batch_size <= base <= last for base in bases)

    @rule(number=strategies.integers(0, 3))
    def answers_are_delivered(self, number: int) -> None:
        self.delivered = max(self.delivered, self.fetch_number - number)

    # Ending deliveries

    @precondition(lambda self: self.holders())
    @rule(
        pick=strategies.integers(0, 2),
        cut=strategies.integers(0, 3),
        types=all_types,
        single=strategies.booleans(),
        renew_enabled=strategies.integers(0, 4),
        dead_letters=strategies.booleans(),
    )
    def acknowledge_what_is_held(
        self,
        pick: int,
        cut: int,
        types: list[AcknowledgeType],
        single: bool,
        renew_enabled: int,
        dead_letters: bool,
    ) -> None:
        holders = self.holders()
        owner = holders[pick % len(holders)]
        spans = self.held_spans(owner)
        first, last = spans[0]
        spans[0] = (min(first + cut, last), last)
        self.acknowledge(owner, spans, types, single, self.fetch_number, renew_enabled > 0, dead_letters)

    @precondition(lambda self: self.holders())
    @rule(pick=strategies.integers(0, 2), types=all_types, length=strategies.integers(1, 6))
    def give_up(self, pick: int, types: list[AcknowledgeType], length: int) -> None:
        """Rejects or releases the last that a member holds, in a group with dead letters."""
        holders = self.holders()
        owner = holders[pick % len(holders)]
        first, last = self.held_spans(owner)[-1]
        first = max(first, last - length + 1)
        ends = [
            AcknowledgeType.RELEASE if kind is AcknowledgeType.RELEASE else AcknowledgeType.REJECT for kind in types
        ]
        self.acknowledge(owner, [(first, last)], ends, False, self.fetch_number, True, True)

    @rule(
        owner=owners,
        first=strategies.integers(-3, 30),
        lengths=strategies.lists(strategies.tuples(strategies.integers(1, 12), strategies.integers(0, 3)), min_size=1),
        types=all_types,
        single=strategies.booleans(),
        held=strategies.booleans(),
    )
    def acknowledge_anything(
        self,
        owner: Owner,
        first: int,
        lengths: list[tuple[int, int]],
        types: list[AcknowledgeType],
        single: bool,
        held: bool,
    ) -> None:
        """Mostly refused: not held, held by others, of an answer that was not delivered, beyond the end, twice."""
        spans = self.held_spans(owner, can_end=False) if held else self.any_spans(first, lengths)
        self.acknowledge(owner, spans, types, single, self.delivered, True, False)

    def acknowledge(
        self,
        owner: Owner,
        spans: list[tuple[int, int]],
        types: list[AcknowledgeType],
        single: bool,
        delivered: int,
        renew_enabled: bool,
        dead_letters: bool,
    ) -> None:
        batches = []
        for first, last in spans[:3]:
            last = min(last, first + 11)
            batches.append(AcknowledgementBatch(first, last, bytes(types[:1] if single else types[: last - first + 1])))
        refusal = self.naive.refusal(owner, self.now_ms, batches, delivered, renew_enabled)
        try:
            write_id = self.machine.acknowledge(
                owner,
                self.now_ms,
                batches,
                group_limits(
                    delivery_count_limit=self.limit,
                    lock_duration_ms=self.lock_duration_ms,
                    renew_enabled=renew_enabled,
                    dead_letters=dead_letters,
                ),
                renew_allowed=True,
                delivered_fetch_number=delivered,
            )
        except KafkaError as error:
            assert error.code is refusal
            return
        assert refusal is None
        self.await_write(write_id)
        marked: list[int] = []

        def mark(offset: int, kind: AcknowledgeType) -> None:
            target, reason = TARGETS[kind]
            self.mark(offset, write_id, target, reason, dead_letters)
            marked.append(offset)

        self.naive.acknowledge(batches, self.now_ms + self.lock_duration_ms, mark)
        assert bool(marked) == (write_id != NO_WRITE)

    def await_write(self, write_id: int) -> None:
        if write_id != NO_WRITE:
            self.awaited.add(write_id)

    def holders(self) -> list[Owner]:
        return [owner for owner in OWNERS if self.held_spans(owner)]

    def held_spans(self, owner: Owner, can_end: bool = True) -> list[tuple[int, int]]:
        """What the member holds, as spans; with `can_end` only what it can acknowledge."""
        spans: list[tuple[int, int]] = []
        for offset, record in sorted(self.naive.records.items()):
            if record.owner != owner:
                continue
            if not can_end or (record.pending is None and record.deadline_ms > self.now_ms):
                if spans and spans[-1][1] == offset - 1:
                    spans[-1] = (spans[-1][0], offset)
                else:
                    spans.append((offset, offset))
        return spans

    def any_spans(self, first: int, lengths: list[tuple[int, int]]) -> list[tuple[int, int]]:
        spans = []
        first = max(first + self.machine.start_offset, 0)
        for length, distance in lengths:
            spans.append((first, first + length - 1))
            first += length + distance - 1 + (length == 1 and distance == 0)
        return spans

    def mark(
        self, offset: int, write_id: int, target: RecordState, reason: ArchivingReason | None, dead_letters: bool
    ) -> None:
        self.naive.mark(offset, write_id, target, reason, self.limit, dead_letters)
        pending = self.naive.records[offset].pending
        if pending and pending[1] is not AVAILABLE:
            self.decided.add(offset)

    @precondition(lambda self: self.machine.acquired_count)
    @rule(
        distance=strategies.integers(-2, 10),
        length=strategies.integers(1, 12),
        kind=strategies.sampled_from([AcknowledgeType.RELEASE, AcknowledgeType.REJECT]),
        dead_letters=strategies.booleans(),
    )
    def end_acquisitions(self, distance: int, length: int, kind: AcknowledgeType, dead_letters: bool) -> None:
        """An administrator releases or rejects what is held, whoever holds it."""
        first = self.machine.start_offset + distance
        last = first + length - 1
        expected = [
            offset
            for offset, record in sorted(self.naive.records.items())
            if first <= offset <= last and record.state is ACQUIRED and record.pending is None
        ]
        assert self.machine.held_in(first, last) == len(expected)
        limits = group_limits(delivery_count_limit=self.limit, dead_letters=dead_letters)
        spans, write_id = self.machine.end_acquisitions(first, last, EVENT_OF_ACKNOWLEDGEMENT[kind], limits)
        assert [offset for begin, end in spans for offset in range(begin, end + 1)] == expected
        self.await_write(write_id)
        target, reason = TARGETS[kind]
        for offset in expected:
            self.mark(offset, write_id, target, reason, dead_letters)
        assert bool(expected) == (write_id != NO_WRITE)

    @precondition(lambda self: self.machine.acquired_count)
    @rule(owner=owners, gateway=strategies.booleans(), dead_letters=strategies.booleans())
    def release(self, owner: Owner, gateway: bool, dead_letters: bool) -> None:
        def is_released(held_by: Owner) -> bool:
            return held_by.gateway_id == owner.gateway_id if gateway else held_by == owner

        write_id = self.machine.release(
            is_released, group_limits(delivery_count_limit=self.limit, dead_letters=dead_letters)
        )
        self.await_write(write_id)
        marked = False
        for offset, record in self.naive.records.items():
            if record.owner is not None and is_released(record.owner):
                record.deadline_ms = 0
                if record.pending is None:
                    self.mark(offset, write_id, AVAILABLE, None, dead_letters)
                    marked = True
        assert marked == (write_id != NO_WRITE)

    @precondition(lambda self: self.machine.acquired_count)
    @rule(
        elapsed_ms=strategies.sampled_from([1, 400, 1000]),
        expires=strategies.booleans(),
        dead_letters=strategies.booleans(),
    )
    def time_passes(self, elapsed_ms: int, expires: bool, dead_letters: bool) -> None:
        self.now_ms += elapsed_ms
        if not expires:
            return
        due = [
            offset
            for offset, record in self.naive.records.items()
            if record.state is ACQUIRED and record.pending is None and record.deadline_ms <= self.now_ms
        ]
        assert not due or self.machine.next_deadline_ms <= self.now_ms
        write_id = self.machine.expire(
            self.now_ms, group_limits(delivery_count_limit=self.limit, dead_letters=dead_letters)
        )
        assert bool(due) == (write_id != NO_WRITE)
        for offset in due:
            self.mark(offset, write_id, AVAILABLE, None, dead_letters)
        assert self.machine.next_deadline_ms > self.now_ms

    # Dead letters

    @precondition(lambda self: self.machine.archiving_count)
    @rule(limit=strategies.integers(0, 3), part=strategies.integers(0, 2))
    def store_dead_letters(self, limit: int, part: int) -> None:
        listed = self.machine.archiving(100, group_limits(delivery_count_limit=self.limit))
        offsets = [(o, run.delivery_count, run.reason) for run in listed for o in range(run[0], run[1] + 1)]
        assert offsets == self.naive.archiving(self.limit)
        assert self.machine.archiving(limit, group_limits(delivery_count_limit=self.limit)) == listed[:limit]
        for first, last, _, _ in listed[:limit]:
            first = min(first + part, last)
            write_id = self.machine.dead_letters_done(first, last)
            assert write_id != NO_WRITE
            for offset in range(first, last + 1):
                self.naive.mark(offset, write_id, ARCHIVED, None, self.limit, False)

    @precondition(lambda self: self.machine.archiving_count)
    @rule(first=strategies.integers(-5, 40), length=strategies.integers(1, 20))
    def dead_letters_done_anywhere(self, first: int, length: int) -> None:
        first += self.machine.start_offset
        offsets = [offset for offset, _, _ in self.naive.archiving(self.limit) if first <= offset < first + length]
        write_id = self.machine.dead_letters_done(first, first + length - 1)
        assert bool(offsets) == (write_id != NO_WRITE)
        for offset in offsets:
            self.naive.mark(offset, write_id, ARCHIVED, None, self.limit, False)

    # Writing

    @precondition(lambda self: self.machine.wants_write)
    @rule()
    def begin_write(self) -> None:
        assert self.in_flight is None
        write = self.machine.next_write()
        assert write is not None and self.machine.next_write() is None
        self.in_flight = write
        said = {offset: tuple(batch[2:]) for batch in write.state_batches for offset in range(batch[0], batch[1] + 1)}
        assert (write.start_offset, said, write.has_more) == self.naive.write(write.write_id, self.store)
        assert len(write.state_batches) <= self.state_batches_limit
        assert self.continued in (NO_WRITE, write.write_id)
        assert list(said) == sorted(said)
        assert all(one[2:] != two[2:] or one[1] + 1 < two[0] for one, two in pairwise(write.state_batches))
        start = self.store.start if write.start_offset < 0 else write.start_offset
        done = max(0, self.machine.start_offset - start)
        for offset, record in self.naive.records.items():
            state = record.state
            if record.pending is not None:
                is_of_write = record.pending[0] == write.write_id
                assert is_of_write or self.continued, "what was gathered goes with this write"
                state = record.pending[1] if is_of_write and offset < self.end_of(write) else state
            if offset >= start and state in TERMINAL:
                done += 1
        assert write.delivery_complete_count == done

    def end_of(self, write: StateWrite) -> int:
        """The end of the changes that a write carries; the next write carries those from there on."""
        return write.state_batches[-1].last_offset + 1 if write.has_more else NO_END

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def write_succeeds(self) -> None:
        assert self.in_flight is not None
        write, self.in_flight = self.in_flight, None
        self.store.apply(write)
        self.machine.write_succeeded(write.write_id)
        self.continued = write.write_id if write.has_more else NO_WRITE
        if not write.has_more:
            self.awaited.discard(write.write_id)
        restart, durable = self.new_naive(self.store.start).start, self.machine.durable_start_offset
        assert restart <= durable, "a restart does not begin behind it"
        before = self.exists.intersection(range(restart, durable))
        assert all(self.store.records[offset][0] in TERMINAL for offset in before), "nor deliver a record before it"
        ended = self.naive.pending_of(write.write_id, self.end_of(write))
        self.naive.write_succeeded(write.write_id, self.end_of(write))
        self.confirmed.update(offset for offset, state in ended.items() if state in (*TERMINAL, ARCHIVING))
        for offset, state in ended.items():
            if offset >= self.store.start:
                assert self.store.records[offset][0] is state

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def write_fails(self) -> None:
        assert self.in_flight is not None
        write, self.in_flight = self.in_flight, None
        self.machine.write_failed(write.write_id)
        self.continued = NO_WRITE
        self.awaited.discard(write.write_id)
        self.naive.write_failed(write.write_id)

    @rule()
    def the_oldest_lock_is_found(self) -> None:
        """By somebody who looks now and then; what waits for the write that ends it may count as held or not."""
        runs = [run for run in self.machine.runs() if run.state is ACQUIRED]
        oldest_ms = self.machine.oldest_deadline_ms()
        assert oldest_ms == NEVER or oldest_ms in [run.lock_deadline_ms for run in runs]
        assert oldest_ms <= min([run.lock_deadline_ms for run in runs if run.write_id == NO_WRITE], default=NEVER)

    @invariant()
    def a_write_comes_for_what_is_pending(self) -> None:
        if self.in_flight is None and not self.machine.wants_write:
            assert self.machine.next_write() is None
            assert not self.awaited
            assert all(record.pending is None for record in self.naive.records.values())

    @precondition(lambda self: self.machine.window > 3)
    @rule(applied=strategies.booleans(), with_gaps=strategies.booleans(), wait=strategies.integers(0, 2))
    def restart(self, applied: bool, with_gaps: bool, wait: int) -> None:
        """The leader is gone; the write in flight took effect or did not. A stored gap means Available, count 0."""
        if wait:
            return
        if self.in_flight is not None and applied:
            self.store.apply(self.in_flight)
        self.in_flight = None
        self.continued = NO_WRITE
        self.awaited = set()
        batches = self.store.batches()
        if with_gaps:
            batches = [batch for batch in batches[:-1] if batch.state or batch.delivery_count] + batches[-1:]
        self.start_from_the_store(batches)

    # What always holds

    @invariant()
    def the_machine_says_what_the_dictionary_says(self) -> None:
        SharePartitionModel.steps_taken += 1
        said: dict[int, Record] = {}
        position = self.machine.start_offset
        before = None
        for run in self.machine.runs():
            assert run.first_offset == position <= run.last_offset
            assert before is None or not run.says_the_same_as(before)
            pending = (run.write_id, run.target) if run.write_id != NO_WRITE else None
            for offset in range(run.first_offset, run.last_offset + 1):
                said[offset] = Record(
                    run.state,
                    run.delivery_count,
                    run.owner,
                    run.lock_deadline_ms,
                    run.fetch_number,
                    pending,
                    run.reason,
                )
            position = run.last_offset + 1
            before = run
        assert (self.machine.start_offset, self.machine.end_offset) == (self.naive.start, self.naive.end)
        assert position == self.machine.end_offset
        assert said == self.naive.records

    @invariant()
    def counts_are_right(self) -> None:
        states = [record.state for record in self.naive.records.values()]
        assert self.machine.available_count == states.count(AVAILABLE)
        assert self.machine.acquired_count == states.count(ACQUIRED)
        assert self.machine.archiving_count == states.count(ARCHIVING)
        assert self.machine.delivery_complete_count == states.count(ACKNOWLEDGED) + states.count(ARCHIVED)

    @invariant()
    def no_lock_is_forgotten(self) -> None:
        deadlines = [
            record.deadline_ms
            for record in self.naive.records.values()
            if record.state is ACQUIRED and record.pending is None
        ]
        assert self.machine.next_deadline_ms <= min(deadlines, default=NEVER)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Below the stored start, and stored as decided, is only what somebody decided on or what does not exist."""
        stored_done = {offset for offset, (state, _) in self.store.records.items() if state is not AVAILABLE}
        skipped = {offset for offset in self.exists if offset < self.store.start} | (stored_done & self.exists)
        assert skipped <= self.decided, "a record that nobody decided on is never skipped"
        assert self.confirmed & self.exists <= skipped
        offsets = sorted(self.store.records)
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True


@pytest.mark.timeout(900)
def test_the_machine_agrees_with_the_model() -> None:
    is_slow = settings.get_current_profile_name() == "slow"
    wanted = SLOW_STEPS if is_slow else QUICK_STEPS
    SharePartitionModel.steps_taken = 0
    rounds = 0
    while SharePartitionModel.steps_taken < wanted:
        rounds += 1
        assert rounds <= 5, f"only {SharePartitionModel.steps_taken} steps"
        run_state_machine_as_test(
            SharePartitionModel,
            settings=settings(
                max_examples=14 * wanted // (10 * STEPS_PER_EXAMPLE),
                stateful_step_count=STEPS_PER_EXAMPLE,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{SharePartitionModel.steps_taken} steps")
