"""Rules of the logs: confirmed records are there, once, in order, until deleted; deliveries match the logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from support.simulation.evidence import Evidence, Violation
from support.simulation.history import Acquired, ProduceConfirmed, ProduceSent, RecordsDeleted, describe


def produced_exactly_once(evidence: Evidence) -> Iterator[Violation]:
    """Every confirmed record is in the log once, where the answer said, in its producer's order; or it was deleted."""
    sent: dict[str, str] = {}
    for event in evidence.events:
        if isinstance(event, ProduceSent):
            sent.update((value, event.producer) for value in event.values)
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition, records in evidence.expected.logs.items():
        for record in records:
            places[record.value].append((partition, record.offset))
    yield from _confirmed_are_in_place(evidence, places)
    for value, found in places.items():
        if len(found) > 1:
            yield Violation("twice in the log", f"{value!r} is at {found}")
        if found and value not in sent:
            yield Violation("in the log, but never produced", f"{value!r} is at {found}")
    yield from _produced_in_order(evidence, sent)


def _confirmed_are_in_place(evidence: Evidence, places: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Violation]:
    """`places`: partition and offset of each value in the logs."""
    for event in evidence.events:
        if not isinstance(event, ProduceConfirmed):
            continue
        for index, value in enumerate(event.values):
            found = places.get(value, ())
            # Where the answer did not say the place, any place that is gone may be it.
            offset = event.base_offset + index if event.base_offset >= 0 else 0
            if not found:
                if not evidence.is_deleted(event.partition, offset):
                    yield Violation("produced and confirmed, but lost", f"{value!r}: {describe(event)}")
            elif event.base_offset >= 0 and (event.partition, offset) not in found:
                yield Violation("not where the answer said", f"{value!r} is at {found}: {describe(event)}")


def _produced_in_order(evidence: Evidence, sent: Mapping[str, str]) -> Iterator[Violation]:
    """`sent`: the producer of each value, in the order in which values were first sent."""
    ranks = {value: rank for rank, value in enumerate(sent)}
    for partition, records in evidence.expected.logs.items():
        newest: dict[str, int] = {}
        for record in records:
            producer = sent.get(record.value, "")
            rank = ranks.get(record.value, -1)
            if rank < newest.get(producer, -1):
                yield Violation("out of order in the log", f"{record.value!r} at {partition}@{record.offset}")
            newest[producer] = rank


def logs_are_dense(evidence: Evidence) -> Iterator[Violation]:
    """Every offset from a log's start to its end has one record, or one control record."""
    for partition, end_offset in evidence.expected.log_ends.items():
        offsets = [record.offset for record in evidence.expected.logs[partition]]
        found = sorted([*offsets, *evidence.expected.log_markers.get(partition, ())])
        position = evidence.expected.log_starts.get(partition, 0)
        for offset in found:
            if offset > position:
                yield Violation(
                    "a gap in the log", f"partition {partition} has no record at {position} to {offset - 1}"
                )
            elif offset < position:
                yield Violation("two records at one offset", f"partition {partition} at {offset}")
            position = max(position, offset + 1)
        if position != end_offset:
            yield Violation(
                "a gap in the log", f"partition {partition} ends at {end_offset}, its records at {position}"
            )


def logs_do_not_change(evidence: Evidence) -> Iterator[Violation]:
    """What was read when the faults had ended is read again at the end, at the same offsets, or it was deleted."""
    for partition, before in evidence.expected.earlier_logs.items():
        now = {record.offset: record for record in evidence.expected.logs.get(partition, ())}
        for record in before:
            found = now.get(record.offset)
            if evidence.is_deleted(partition, record.offset):
                continue
            if found is None or (found.value, found.committed) != (record.value, record.committed):
                text = f"{partition}@{record.offset} was {record.value!r} (committed: {record.committed}), now {found}"
                yield Violation("a record of the log changed", text)


def delivered_what_was_produced(evidence: Evidence) -> Iterator[Violation]:
    """What is delivered is what the log has there, or had there before it was deleted."""
    values = {
        (event.partition, event.base_offset + index): value
        for event in evidence.events
        if isinstance(event, ProduceConfirmed) and event.base_offset >= 0
        for index, value in enumerate(event.values)
    }
    for partition, records in evidence.expected.logs.items():
        values.update(((partition, record.offset), record.value) for record in records)
    for key, events in evidence.deliveries.items():
        for event in events:
            value = event.values[key.offset - event.run[0]]
            expected = values.get((key.partition, key.offset))
            if expected is None and evidence.is_deleted(key.partition, key.offset):
                continue
            if value != expected:
                text = f"delivered as {value!r}; the log has {expected!r} there"
                yield evidence.violation("delivered what is not in the log", key, text)


def nothing_deleted_comes_back(evidence: Evidence) -> Iterator[Violation]:
    """Once a DeleteRecords is confirmed, no fetch acquires below its low watermark; the log's start never goes back."""
    deleted = [event for event in evidence.events if isinstance(event, RecordsDeleted)]
    for event in deleted:
        start = evidence.expected.log_starts.get(event.partition, 0)
        if start < event.low_watermark:
            yield Violation("the log start went back", f"the log starts at {start} at last; {describe(event)}")
    for event in deleted:
        for acquired in evidence.events:
            if not isinstance(acquired, Acquired) or acquired.partition != event.partition:
                continue
            if (
                acquired.sent_at > event.time + evidence.expected.deletion_delay_s
                and acquired.run[0] < event.low_watermark
            ):
                lines = [describe(event), describe(acquired)]
                yield Violation("deleted, and delivered afterwards", f"partition {event.partition}", lines)
                break
