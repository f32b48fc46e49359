"""What retention.bytes can have deleted by some time, from what producers had sent until then.

A log deletes its oldest records only while so many bytes follow them. The producers' events bound these bytes from
above: an offset is free until the value that it has, or one at a higher offset, was sent first. Offsets whose values
are not known (markers, and records that were deleted before anyone heard of them) count as the largest record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from support.simulation.history import Delivered, Event, ProduceConfirmed, ProduceSent
from support.simulation.kafka_clients.protocol import ReadRecord

BATCH_BYTES = 61
"""The header of a record batch."""
RECORD_BYTES = 10
"""Of a record without key and headers, beside its value, at most."""
LARGEST_BYTES = 100
"""A batch with one record, or a marker, has fewer."""


class _Produced(NamedTuple):
    """A value, as its producer sent it first."""

    sent_at: float
    position: int
    """In its batch; the first one has 0."""
    size_bytes: int
    """With the batch's header for the first value of the batch."""


class Retention:
    """See the module's text. `can_have_deleted` answers for one partition at a time."""

    def __init__(self, events: Iterable[Event], logs: Mapping[int, Sequence[ReadRecord]], retention_bytes: int) -> None:
        self._retention_bytes = retention_bytes
        produced: dict[str, _Produced] = {}
        self._known: dict[int, dict[int, _Produced]] = {partition: {} for partition in logs}
        for event in events:
            if isinstance(event, ProduceSent):
                for index, value in enumerate(event.values):
                    size_bytes = RECORD_BYTES + len(value.encode()) + BATCH_BYTES * (index == 0)
                    produced.setdefault(value, _Produced(event.time, index, size_bytes))
            elif isinstance(event, ProduceConfirmed | Delivered):
                first = event.run[0] if isinstance(event, Delivered) else event.base_offset
                if first >= 0:
                    self._learn(event.partition, first, event.values, produced)
        for partition, records in logs.items():
            for record in records:
                self._learn(partition, record.offset, (record.value,), produced)
        self._ends = {partition: _free_from(known) for partition, known in self._known.items()}

    def _learn(self, partition: int, first: int, values: Sequence[str], produced: Mapping[str, _Produced]) -> None:
        known = self._known.setdefault(partition, {})
        for offset, value in enumerate(values, first):
            if value in produced:
                known[offset] = produced[value]

    def can_have_deleted(self, partition: int, offset: int, time: float, log_end: int) -> bool:
        """Whether the batch with the offset and all that may have followed it by `time` reach retention.bytes.

        `log_end` is the end of the log at the end of the history.
        """
        known = self._known.get(partition, {})
        sent_at, free_from = self._ends.get(partition, ([], []))
        later = bisect_right(sent_at, time)
        end = min(log_end, free_from[later]) if later < len(free_from) else log_end
        first = offset - known[offset].position if offset in known else offset
        sizes = (known[each].size_bytes if each in known else LARGEST_BYTES for each in range(first, end))
        return sum(sizes) >= self._retention_bytes


def _free_from(known: Mapping[int, _Produced]) -> tuple[list[float], list[int]]:
    """Times in order, and the lowest offset whose value was sent first at this time or later."""
    ordered = sorted((one.sent_at, offset) for offset, one in known.items())
    lowest: list[int] = []
    for _, offset in reversed(ordered):
        lowest.append(min(offset, lowest[-1]) if lowest else offset)
    return [sent_at for sent_at, _ in ordered], lowest[::-1]
