"""The history of one served share-partition, from loading to unloading; see `history` for the path of its events.

Each method is called right after the change that it records took effect, so the order of calls is the order of events.
No method waits or fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kshare_core.delivery_history import (
    REASON_BELOW_LOG_START,
    REASON_DELIVERIES_ENDED,
    REASON_DELIVERY_COUNT_LIMIT,
    REASON_GAP,
    REASON_LOG_TRUNCATED,
    REASON_MISSING_IN_LOG,
    REASON_NOT_DELIVERED,
    REASON_REJECTED,
    REASON_SESSION_ENDED,
    EventType,
)
from kshare_core.states import RecordState
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.history import event_text
from kshare_leader.history.buffer import EventStream
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.archiving import ArchivingRun
from kshare_leader.machine.facts import DeliveryFact
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.transitions import ArchivingReason, Event
from kshare_leader.ports import StoredBatch
from kshare_wire.record_batches import first_record_time_ms

CLIENT_ID_LENGTH_LIMIT = 128
"""A longer client id is cut, since each acquisition repeats it in a buffer that is limited."""
REASONS = {
    ArchivingReason.REJECTED: REASON_REJECTED,
    ArchivingReason.DELIVERY_COUNT_EXCEEDED: REASON_DELIVERY_COUNT_LIMIT,
}


class _Told(NamedTuple):
    """The events for a fact: `event` with `reason`, and `archived` with `at_limit` if it archived the records."""

    event: EventType
    reason: str = ""
    at_limit: str = ""
    has_member: bool = True


_TOLD = {
    Event.ACCEPT: _Told(EventType.ACCEPTED),
    Event.RELEASE: _Told(EventType.RELEASED, at_limit=REASON_DELIVERY_COUNT_LIMIT),
    Event.REJECT: _Told(EventType.REJECTED, at_limit=REASON_REJECTED),
    Event.GAP: _Told(EventType.ARCHIVED, REASON_GAP),
    Event.RENEW: _Told(EventType.RENEWED),
    Event.SESSION_END: _Told(EventType.RELEASED, REASON_SESSION_ENDED, REASON_DELIVERY_COUNT_LIMIT),
    Event.LOCK_TIMEOUT: _Told(EventType.EXPIRED, at_limit=REASON_DELIVERY_COUNT_LIMIT),
    Event.ACQUISITION_UNDONE: _Told(EventType.RELEASED, REASON_NOT_DELIVERED),
    Event.MISSING_IN_LOG: _Told(EventType.ARCHIVED, REASON_MISSING_IN_LOG),
    Event.BELOW_LOG_START: _Told(EventType.ARCHIVED, REASON_BELOW_LOG_START),
    Event.DEAD_LETTERED: _Told(EventType.ARCHIVED),
}
"""All events of the machine's table except ACQUIRE, which `acquired` records."""


class PartitionHistory:
    """See the module docstring. `wall_now_ms` is the wall clock; `open_stream` gets the state epoch.

    `open_stream` None: no history. `delivery_count_limit` returns the group's current share.delivery.count.limit.
    """

    __slots__ = ("_delivery_count_limit", "_open_stream", "_start_offset", "_stream", "_wall_now_ms")

    def __init__(
        self,
        *,
        open_stream: Callable[[int], EventStream] | None,
        wall_now_ms: Callable[[], int],
        delivery_count_limit: Callable[[], int],
    ) -> None:
        self._open_stream = open_stream
        self._wall_now_ms = wall_now_ms
        self._delivery_count_limit = delivery_count_limit
        self._stream: EventStream | None = None
        """None before loading and after unloading: then no events are recorded."""
        self._start_offset = -1

    def loaded(
        self, machine: SharePartition, state_epoch: int, reset: str = "", truncation_leader_epoch: int = 0
    ) -> None:
        """Records that the state was read; `reset` is share.auto.offset.reset if that gave the start offset.

        `truncation_leader_epoch` is that of the state's newest truncation, 0 if there was none.
        """
        if self._open_stream is None:
            return
        machine.facts.keep()
        self._stream = self._open_stream(state_epoch)
        self._start_offset = machine.start_offset
        reason = f"{REASON_LOG_TRUNCATED}{truncation_leader_epoch}" if truncation_leader_epoch else reset
        self._stream.add(event_text.loaded(self._wall_now_ms(), machine.start_offset, machine.runs(), reason))

    def unloaded(self, reason: str) -> None:
        """Records that it is no longer served; `reason` is the name of the Kafka error."""
        if self._stream is not None:
            self._stream.add(event_text.unloaded(self._wall_now_ms(), reason))
            self._stream.end()
            self._stream = None

    def acquired(self, limits: FetchLimits, records: Sequence[AcquiredRecords], batches: Sequence[StoredBatch]) -> None:
        """Records what one fetch acquired; `batches` contain the records, and both ascend."""
        if self._stream is None or not records:
            return
        now_ms = self._wall_now_ms()
        member = event_text.as_json(limits.owner.member_id)
        client = event_text.as_json(limits.client_id[:CLIENT_ID_LENGTH_LIMIT]) if limits.client_id else ""
        deadline_ms = now_ms + limits.group.lock_duration_ms
        for first, last, delivery_count in _joined(records):
            appended_ms = append_time_ms(batches, first)
            self._stream.add(
                event_text.acquired(now_ms, first, last, delivery_count, member, appended_ms, deadline_ms, client)
            )

    def changed(self, machine: SharePartition, loop_now_ms: Callable[[], int]) -> None:
        """Records the facts since the last call; `loop_now_ms` is the clock of lock deadlines."""
        if self._stream is not None and (facts := machine.facts.take()):
            now_ms, lock_now_ms = self._wall_now_ms(), loop_now_ms()
            for fact in facts:
                self._tell(self._stream, fact, now_ms, lock_now_ms)

    def start_offset_moved(self, start_offset: int, log_start_offset: int) -> None:
        """Records the durable start offset, if it moved."""
        if self._stream is not None and start_offset > self._start_offset:
            self._start_offset = start_offset
            reason = REASON_BELOW_LOG_START if start_offset <= log_start_offset else REASON_DELIVERIES_ENDED
            self._stream.add(event_text.start_offset_moved(self._wall_now_ms(), start_offset, reason))

    def dead_lettered(self, archiving: Iterable[ArchivingRun], stored: Sequence[OffsetRun], topic: str) -> None:
        """Records that dead letters of `stored` are in `topic`; `archiving` are the waiting runs. Both ascend."""
        if self._stream is None:
            return
        now_ms = self._wall_now_ms()
        for run in archiving:
            for first, last in stored:
                first, last = max(first, run.first_offset), min(last, run.last_offset)
                if first <= last:
                    text = event_text.of_run(
                        EventType.DEAD_LETTERED,
                        now_ms,
                        first,
                        last,
                        run.delivery_count,
                        reason=REASONS[run.reason],
                        dead_letter_topic=topic,
                    )
                    self._stream.add(text)

    def _tell(self, stream: EventStream, fact: DeliveryFact, now_ms: int, loop_now_ms: int) -> None:
        event, first, last, state, delivery_count, member_id, deadline_ms, why = fact
        told = _TOLD[event]
        reason = told.reason
        if event is Event.DEAD_LETTERED:
            reason = self._reason(why, delivery_count)
        stream.add(
            event_text.of_run(
                told.event,
                now_ms,
                first,
                last,
                delivery_count,
                member=event_text.as_json(member_id) if member_id else "",
                reason=reason,
                lock_deadline_ms=now_ms + deadline_ms - loop_now_ms if event is Event.RENEW else None,
            )
        )
        if told.at_limit and state is RecordState.ARCHIVED:
            text = event_text.of_run(EventType.ARCHIVED, now_ms, first, last, delivery_count, reason=told.at_limit)
            stream.add(text)

    def _reason(self, why: ArchivingReason | None, delivery_count: int) -> str:
        """The reason, as in `machine.archiving`: after a restart only the delivery count tells it."""
        if why is not None:
            return REASONS[why]
        return REASON_DELIVERY_COUNT_LIMIT if delivery_count >= self._delivery_count_limit() else REASON_REJECTED


SILENT = PartitionHistory(open_stream=None, wall_now_ms=lambda: 0, delivery_count_limit=lambda: 0)
"""The history of a share-partition without one."""


def _joined(records: Sequence[AcquiredRecords]) -> Sequence[AcquiredRecords]:
    """Joins adjacent entries with the same delivery count, as a response has one per batch."""
    if len(records) == 1:
        return records
    wider = [records[0]]
    for record in records[1:]:
        first, last, count = wider[-1]
        if last + 1 == record.first_offset and count == record.delivery_count:
            wider[-1] = AcquiredRecords(first, record.last_offset, count)
        else:
            wider.append(record)
    return wider


def append_time_ms(batches: Sequence[StoredBatch], offset: int) -> int | None:
    """The first record's timestamp, of either type, from the header of the batch that contains `offset`."""
    index = bisect_left(batches, offset, key=_last_offset)
    if index == len(batches):
        return None
    time_ms = first_record_time_ms(batches[index].data)
    return time_ms if time_ms >= 0 else None


def _last_offset(batch: StoredBatch) -> int:
    return batch.last_offset
