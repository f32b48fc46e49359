"""A share-partition without any cleverness: a dictionary with one entry an offset, and loops over single offsets.

It says what the machine must say. Each method is one operation of the machine and returns what that must return; what
is durable lives in a `NaiveStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from kshare_core.errors import ErrorCode
from kshare_core.states import (
    IN_FLIGHT_OFFSETS_LIMIT,
    STATE_BATCHES_PER_WRITE_LIMIT,
    AcknowledgeType,
    RecordState,
)
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.state_write import StateBatch, StateWrite
from kshare_leader.machine.transitions import ArchivingReason

AVAILABLE, ACQUIRED, ARCHIVING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVING
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
TERMINAL = (ACKNOWLEDGED, ARCHIVED)
NO_END = 1 << 62


@dataclass
class Record:
    """What is known about one offset; `pending` is the id of a write and the state that it leads to."""

    state: RecordState
    count: int
    owner: Owner | None = None
    deadline_ms: int = 0
    fetch_number: int = 0
    pending: tuple[int, RecordState] | None = None
    reason: ArchivingReason | None = None


@dataclass
class NaiveStore:
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


class NaiveSharePartition:
    """See the module's text."""

    def __init__(
        self,
        start: int,
        stored: dict[int, tuple[RecordState, int]],
        *,
        window_limit: int = IN_FLIGHT_OFFSETS_LIMIT,
        state_batches_limit: int = STATE_BATCHES_PER_WRITE_LIMIT,
    ) -> None:
        self.window_limit = window_limit
        self.state_batches_limit = state_batches_limit
        self.start = start
        self.end = max([start, *[offset + 1 for offset in stored]])
        self.records = {offset: Record(*stored.get(offset, (AVAILABLE, 0))) for offset in range(start, self.end)}
        self.removed_below = 0
        self.move_start()

    # What there is to see

    def offsets_in(self, *states: RecordState) -> list[int]:
        return [offset for offset, record in sorted(self.records.items()) if record.state in states]

    def next_fetch(self, cursor: int, max_record_locks: int) -> tuple[int, bool] | None:
        for offset in self.offsets_in(AVAILABLE):
            if offset >= cursor:
                return offset, False
        if self.end - self.start < max_record_locks and cursor <= self.end:
            return self.end, True
        return None

    def move_start(self) -> None:
        while self.start in self.records and self.records[self.start].state in TERMINAL:
            del self.records[self.start]
            self.start += 1

    # Acquiring

    def acquire(
        self, limits: FetchLimits, now_ms: int, fetch_offset: int, batches: Sequence[tuple[int, int]], covered_end: int
    ) -> tuple[dict[int, int], bool]:
        """Offset -> delivery count of what is acquired, and whether the fetch must stop."""
        held = Record(ACQUIRED, 0, limits.owner, now_ms + limits.group.lock_duration_ms, limits.fetch_number)
        exists = {offset: base for base, last in batches for offset in range(base, last + 1)}
        for offset in range(fetch_offset, min(covered_end, self.end)):
            if offset not in exists and offset in self.records and self.records[offset].state is AVAILABLE:
                self.records[offset].state = ARCHIVED
        self.move_start()
        got, complete = self._acquire_again(limits, fetch_offset, batches)
        for offset, count in got.items():
            self.records[offset] = replace(held, count=count)
        if complete:
            return got, True
        if covered_end <= self.end:
            return got, False
        return got, self._acquire_new(limits, held, batches, covered_end, got)

    def _acquire_new(
        self,
        limits: FetchLimits,
        held: Record,
        batches: Sequence[tuple[int, int]],
        covered_end: int,
        got: dict[int, int],
    ) -> bool:
        room = min(limits.max_records - len(got), limits.group.max_record_locks - (self.end - self.start))
        space = self.window_limit - (self.end - self.start)
        for base, last in batches:
            if last < self.end:
                continue
            if room <= 0 or space <= 0:
                break
            space -= base > self.end
            self._archive_new(base)
            for offset in range(self.end, last + 1):
                if space > 0 and (room > 0 or not limits.record_limit):
                    got[offset] = 1
                    self.records[offset] = replace(held, count=1)
                    self.end = offset + 1
                    room -= 1
                    space -= 1
        if not batches or self.end > batches[-1][1]:
            self._archive_new(covered_end)
        self.move_start()
        return room <= 0 or space <= 0

    def _archive_new(self, end: int) -> None:
        for offset in range(self.end, end):
            self.records[offset] = Record(ARCHIVED, 0)
        self.end = max(self.end, end)

    def _acquire_again(
        self, limits: FetchLimits, fetch_offset: int, batches: Sequence[tuple[int, int]]
    ) -> tuple[dict[int, int], bool]:
        """Redelivery: whole pieces (same batch, same count, without a gap), or single records with record_limit."""
        got: dict[int, int] = {}
        for base, last in batches:
            before: tuple[int, int] | None = None
            for offset in range(max(base, fetch_offset), last + 1):
                record = self.records.get(offset)
                if record is None or record.state is not AVAILABLE:
                    continue
                if before != (offset - 1, record.count):
                    if len(got) >= limits.max_records:
                        return got, True
                    if self._is_poison(record, limits):
                        return got or self._acquire_poison(limits, offset, batches), True
                if limits.record_limit and len(got) >= limits.max_records:
                    return got, True
                before = (offset, record.count)
                got[offset] = record.count + 1
        return got, len(got) >= limits.max_records

    def _acquire_poison(
        self, limits: FetchLimits, fetch_offset: int, batches: Sequence[tuple[int, int]]
    ) -> dict[int, int]:
        """Some of the Available records from `fetch_offset` on that failed as often as the one there."""
        count = self.records[fetch_offset].count
        batch_of = {offset: (base, last) for base, last in batches for offset in range(base, last + 1)}
        available = [offset for offset in self.offsets_in(AVAILABLE) if offset >= fetch_offset and offset in batch_of]
        failed = list(takewhile(lambda offset: self._is_poison(self.records[offset], limits), available))
        base, last = batch_of[fetch_offset]
        group = max(last - base + 1, min(limits.batch_size, len(failed)))
        for _ in range(-1, count - self._throttle_from(limits)):
            group //= 2
        if limits.group.delivery_count_limit > 2 and count >= limits.group.delivery_count_limit - 1:
            group = 1
        got: dict[int, int] = {}
        for before, offset in zip([None, *failed], failed, strict=False):
            is_full = len(got) >= limits.max_records
            if is_full and (limits.record_limit or before != offset - 1 or batch_of[offset] != batch_of[before]):
                break
            if len(got) == max(1, group) or self.records[offset].count != count:
                break
            got[offset] = count + 1
        return got

    def _throttle_from(self, limits: FetchLimits) -> int:
        return max(2, -(-limits.group.delivery_count_limit // 2))

    def _is_poison(self, record: Record, limits: FetchLimits) -> bool:
        limit = limits.group.delivery_count_limit
        return record.count >= self._throttle_from(limits) or (limit > 2 and record.count >= limit - 1)

    def undo_acquire(self, owner: Owner, acquired: dict[int, int]) -> None:
        for offset, count in acquired.items():
            record = self.records.get(offset)
            if record and record.owner == owner and not record.pending and record.count == count:
                self.records[offset] = Record(AVAILABLE, count - 1)

    def remove_below(self, log_start: int) -> None:
        self.removed_below = max(self.removed_below, log_start)
        if log_start > self.end:
            self._archive_new(log_start)
        for offset in range(self.start, log_start):
            record = self.records[offset]
            has_dead_letter = ARCHIVING in (record.state, record.pending and record.pending[1])
            if record.state not in TERMINAL and not has_dead_letter:
                self.records[offset] = Record(ARCHIVED, record.count)
        self.move_start()

    # Changes that are pending until they are written

    def refusal(
        self,
        owner: Owner,
        now_ms: int,
        batches: Sequence[AcknowledgementBatch],
        delivered_fetch_number: int,
        renew_enabled: bool,
    ) -> ErrorCode | None:
        """Why well-formed acknowledgements are refused."""
        previous_last, was_renewed = -1, False
        for first, last, types in batches:
            known = [offset for offset in range(first, last + 1) if offset >= self.removed_below]
            if not known:
                continue
            if known[0] <= previous_last and not was_renewed:
                return ErrorCode.INVALID_RECORD_STATE
            if self.records and known[0] >= self.start and last >= self.end:
                return ErrorCode.INVALID_REQUEST
            for offset in known:
                record = self.records.get(offset)
                if record is None or record.state is not ACQUIRED or record.owner != owner or record.pending:
                    return ErrorCode.INVALID_RECORD_STATE
                if record.deadline_ms <= now_ms or record.fetch_number > delivered_fetch_number:
                    return ErrorCode.INVALID_RECORD_STATE
                kind = types[0] if len(types) == 1 else types[offset - first]
                if kind == AcknowledgeType.RENEW and not renew_enabled:
                    return ErrorCode.INVALID_RECORD_STATE
            previous_last, was_renewed = last, types[-1] == AcknowledgeType.RENEW
        return None

    def acknowledge(
        self,
        batches: Iterable[AcknowledgementBatch],
        lock_deadline_ms: int,
        mark: Callable[[int, AcknowledgeType], None],
    ) -> None:
        """Applies acknowledgements that are not refused; `mark` is called for each offset that is not renewed."""
        for first, last, types in batches:
            for offset in range(max(first, self.removed_below), last + 1):
                kind = AcknowledgeType(types[0] if len(types) == 1 else types[offset - first])
                if kind is AcknowledgeType.RENEW:
                    self.records[offset].deadline_ms = lock_deadline_ms
                else:
                    mark(offset, kind)

    def mark(
        self, offset: int, write_id: int, target: RecordState, reason: ArchivingReason | None, limit: int, dlq: bool
    ) -> None:
        """The offset's change to `target`; Available becomes Archived at the limit, and Archiving with dead letters."""
        record = self.records[offset]
        if target is AVAILABLE:
            if record.count < limit:
                reason = None
            else:
                target, reason = ARCHIVED, ArchivingReason.DELIVERY_COUNT_EXCEEDED
        if target is ARCHIVED and reason is not None and dlq:
            target = ARCHIVING
        record.pending = (write_id, target)
        if target is ARCHIVING:
            record.reason = reason

    def pending_of(self, write_id: int, end: int = NO_END) -> dict[int, RecordState]:
        """The changes of a write's id; before `end`, where a write of the same id continues it."""
        pending = {offset: record.pending for offset, record in self.records.items() if offset < end}
        return {offset: one[1] for offset, one in pending.items() if one and one[0] == write_id}

    def write(self, write_id: int, store: NaiveStore) -> tuple[int, dict[int, tuple[RecordState, int]], bool]:
        """The start offset and the states that the write must say, and whether there are more: see `state_write`."""
        changed = self.pending_of(write_id)
        if not changed:
            return self.start, {}, False
        start_after = self.start
        while start_after < self.end and changed.get(start_after, self.records[start_after].state) in TERMINAL:
            start_after += 1
        stored_end = max([self.start, *[offset + 1 for offset in store.records]])
        if start_after >= stored_end and max(changed) < start_after:
            return start_after, {}, False
        said: dict[int, tuple[RecordState, int]] = {}
        for offset in range(self.start, max(changed) + 1):
            record = self.records[offset]
            if offset in changed:
                said[offset] = (changed[offset], record.count)
            elif offset >= stored_end and record.state is ACQUIRED:
                said[offset] = (AVAILABLE, record.count - 1)
            elif offset >= stored_end:
                said[offset] = (record.state, record.count)
        begins = [offset for offset in said if said.get(offset - 1) != said[offset]]
        end = [*begins, *[NO_END] * self.state_batches_limit][self.state_batches_limit]
        first = {offset: value for offset, value in said.items() if offset < end}
        return (-1 if self.start == store.start else self.start), first, end != NO_END

    def write_succeeded(self, write_id: int, end: int) -> None:
        for offset, state in self.pending_of(write_id, end).items():
            record = self.records[offset]
            self.records[offset] = Record(state, record.count, reason=record.reason if state is ARCHIVING else None)
        self.move_start()

    def write_failed(self, write_id: int) -> None:
        for offset in self.pending_of(write_id):
            record = self.records[offset]
            record.pending = None
            if record.state is ACQUIRED:
                record.reason = None

    def archiving(self, limit: int) -> list[tuple[int, int, ArchivingReason]]:
        """Offset, delivery count and reason of what `SharePartition.archiving` must list, of all its runs."""
        found = []
        for offset, record in sorted(self.records.items()):
            if record.state is ARCHIVING and record.pending is None:
                exceeded = record.count >= limit
                guess = ArchivingReason.DELIVERY_COUNT_EXCEEDED if exceeded else ArchivingReason.REJECTED
                found.append((offset, record.count, record.reason or guess))
        return found
