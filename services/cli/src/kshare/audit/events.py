"""The audit's input: one event of the delivery history with the fields of its record.

The audit sorts the events of one share-partition as `HistoryEvent` does: by leader epoch, incarnation and sequence. A
leader epoch belongs to one incarnation of one leader, and a later leader has a higher one. So this is the order in
which the events occurred, independent of when their records reached the topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from kshare_core.delivery_history import REASON_LOG_TRUNCATED, DurableRun, EventType, HistoryRecord


class SharePartitionId(NamedTuple):
    """The key that groups events; `topic` is the topic's name, for output."""

    group: str
    topic_id: str
    partition: int
    topic: str

    def __str__(self) -> str:
        return f"group {self.group}, {self.topic}-{self.partition}"


class HistoryEvent(NamedTuple):
    """The fields of `kshare_core.delivery_history`; offsets are runs, both ends included."""

    leader_epoch: int
    incarnation: int
    sequence: int
    leader: int
    state_epoch: int
    event: str
    time_ms: int
    first_offset: int | None = None
    last_offset: int | None = None
    delivery_count: int | None = None
    member_id: str | None = None
    start_offset: int | None = None
    reason: str | None = None
    runs: tuple[DurableRun, ...] | None = None

    def __str__(self) -> str:
        """One line that identifies the event."""
        parts = [self.event]
        if self.first_offset is not None:
            parts.append(f"{self.first_offset}-{self.last_offset}")
        if self.start_offset is not None:
            parts.append(f"start offset {self.start_offset}")
        if self.delivery_count is not None:
            parts.append(f"delivery count {self.delivery_count}")
        if self.member_id:
            parts.append(f"member {self.member_id}")
        if self.reason:
            parts.append(f"reason {self.reason}")
        place = (
            f"leader {self.leader}, incarnation {self.incarnation}, sequence {self.sequence}, "
            f"epochs {self.state_epoch}/{self.leader_epoch}"
        )
        return f"{_time_text(self.time_ms)} {', '.join(parts)} ({place})"

    @property
    def truncation_leader_epoch(self) -> int:
        """Of a `loaded` event: the leader epoch in which the durable state was last truncated; 0 for never."""
        if self.event != "loaded" or not self.reason or not self.reason.startswith(REASON_LOG_TRUNCATED):
            return 0
        number = self.reason.removeprefix(REASON_LOG_TRUNCATED)
        return int(number) if number.isdecimal() else 0

    @property
    def problem(self) -> str | None:
        """Why the event is malformed; None if it is not."""
        if self.event not in _KNOWN:
            return f"unknown event {self.event!r}"
        if self.event in _WITH_START and self.start_offset is None:
            return "it has no start offset"
        if self.event in _WITH_OFFSETS:
            if self.first_offset is None or self.last_offset is None:
                return "it has no offsets"
            if not 0 <= self.first_offset <= self.last_offset:
                return f"its offsets {self.first_offset}-{self.last_offset} are no run"
            if self.event in _WITH_COUNT and self.delivery_count is None:
                return "it has no delivery count"
        return None


_KNOWN = frozenset(str(kind) for kind in EventType)
_WITH_START = frozenset({"loaded", "start_offset_moved"})
_WITH_OFFSETS = _KNOWN - _WITH_START - {"unloaded"}
_WITH_COUNT = frozenset({"acquired", "renewed", "accepted", "released", "rejected", "expired"})


def _time_text(time_ms: int) -> str:
    """ISO 8601 in UTC; the number itself if it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms"


def share_partition_of(record: HistoryRecord) -> SharePartitionId:
    return SharePartitionId(record.group, record.topic_id, record.partition, record.topic)


def events_of(record: HistoryRecord) -> Iterator[HistoryEvent]:
    """The record's events, each with its own sequence."""
    for index, event in enumerate(record.events):
        yield HistoryEvent(
            record.leader_epoch,
            record.incarnation,
            record.sequence + index,
            record.leader,
            record.state_epoch,
            str(event.event),
            event.time_ms,
            event.first_offset,
            event.last_offset,
            event.delivery_count,
            event.member_id,
            event.start_offset,
            event.reason,
            event.runs,
        )
