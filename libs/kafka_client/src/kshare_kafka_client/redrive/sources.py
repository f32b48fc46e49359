"""The offsets that a redrive looks at, and their candidates."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from kshare_kafka_client.range_reader import OffsetRange, RangeReader
from kshare_kafka_client.redrive.archived_runs import archived_runs
from kshare_kafka_client.redrive.candidates import REASON_GIVEN, Candidate, bytes_of, dead_letter, headers_of
from kshare_kafka_client.redrive.request import Account, BadRequest, RedriveRequest
from kshare_kafka_client.topics import (
    Partition,
    UnknownTopic,
    end_offsets,
    offsets_at,
    partitions_of,
    start_offsets,
)

DEAD_LETTERS, RECORDS = "dead_letters", "records"
SPAN_GAP_OFFSETS = 500
SPAN_LIMIT_OFFSETS = 50_000
NO_SUCH_OFFSET = "the log does not have this offset"


class SourceRange(NamedTuple):
    """Offsets to look at, of a dead-letter topic or of records themselves; the latter have the range's reason."""

    kind: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    group_id: str = ""
    reason: str = ""
    delivery_count: int = 0
    time_ms: int = -1
    """-1 for the time of each record."""

    @property
    def place(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first_offset, self.end_offset)


class Span(NamedTuple):
    """Ranges of one partition and kind that are read at once; they ascend and do not overlap."""

    ranges: tuple[SourceRange, ...]

    @property
    def place(self) -> Partition:
        return self.ranges[0].place

    @property
    def offsets(self) -> OffsetRange:
        return self.ranges[0].offsets._replace(end_offset=self.ranges[-1].end_offset)

    def to_json(self) -> str:
        return json.dumps(self.ranges)

    @staticmethod
    def from_json(text: str) -> Span:
        return Span(tuple(SourceRange(*fields) for fields in json.loads(text)))


def spans_of(ranges: Sequence[SourceRange]) -> list[Span]:
    """All ranges in order; close ones share a span of at most SPAN_LIMIT_OFFSETS.

    A history has runs of single records: reading the records between two runs is cheaper than another range.
    """
    spans: list[list[SourceRange]] = []
    for one in ranges:
        last = spans[-1] if spans else []
        if last and _is_close(last, one):
            last.append(one)
        else:
            spans.append([one])
    return [Span(tuple(found)) for found in spans]


def _is_close(span: Sequence[SourceRange], one: SourceRange) -> bool:
    return (
        span[-1].kind == one.kind == RECORDS
        and span[-1].place == one.place
        and one.first_offset - span[-1].end_offset <= SPAN_GAP_OFFSETS
        and one.end_offset - span[0].first_offset <= SPAN_LIMIT_OFFSETS
    )


def source_ranges(request: RedriveRequest, reader: RangeReader, account: Account) -> list[SourceRange]:
    """Ranges by topic, partition and offset, without overlaps. Offsets outside of the log become problems."""
    request.check()
    if request.dead_letter_topics:
        found = _dead_letter_ranges(request, reader.consumer)
    elif request.offsets:
        found = [
            SourceRange(RECORDS, topic, partition, first, last + 1, reason=REASON_GIVEN)
            for topic, partition, first, last in request.offsets
        ]
        found = _inside_of_logs(reader.consumer, found, account)
    else:
        found = [
            SourceRange(
                RECORDS,
                run.topic,
                run.partition,
                run.first_offset,
                run.last_offset + 1,
                run.group_id,
                run.reason,
                run.delivery_count,
                run.time_ms,
            )
            for run in archived_runs(reader, request.archived_groups, request.properties, account)
        ]
        found = _inside_of_logs(reader.consumer, found, account)
    return sorted(found, key=_by_place)


def _by_place(one: SourceRange) -> tuple[str, int, int]:
    return one.topic, one.partition, one.first_offset


def _without_overlaps(ranges: Sequence[SourceRange]) -> list[SourceRange]:
    found: list[SourceRange] = []
    for one in sorted(ranges, key=_by_place):
        if found and found[-1].place == one.place:
            one = one._replace(first_offset=max(one.first_offset, found[-1].end_offset))
        if one.first_offset < one.end_offset:
            found.append(one)
    return found


def _dead_letter_ranges(request: RedriveRequest, consumer: Consumer) -> list[SourceRange]:
    existing = partitions_of(consumer, request.dead_letter_topics)
    missing = [topic for topic in request.dead_letter_topics if topic not in existing]
    if missing:
        raise UnknownTopic(f"there is no topic {', '.join(missing)}")
    partitions = [partition for found in existing.values() for partition in found]
    since_ms = request.selection.since_ms
    starts = start_offsets(consumer, partitions) if since_ms is None else offsets_at(consumer, partitions, since_ms)
    ends = end_offsets(consumer, partitions)
    return [SourceRange(DEAD_LETTERS, *partition, starts[partition], ends[partition]) for partition in partitions]


def _inside_of_logs(consumer: Consumer, ranges: list[SourceRange], account: Account) -> list[SourceRange]:
    topics = tuple(dict.fromkeys(one.topic for one in ranges))
    internal = [topic for topic in topics if topic.startswith("__")]
    if internal:
        raise BadRequest(f"records of internal topics are not moved: {', '.join(internal)}")
    existing = [partition for found in partitions_of(consumer, topics).values() for partition in found]
    named = dict.fromkeys(one.place for one in ranges)
    asked = [partition for partition in existing if partition in named]
    starts, ends = start_offsets(consumer, asked), end_offsets(consumer, asked)
    found: list[SourceRange] = []
    for one in _without_overlaps(ranges):
        first = max(one.first_offset, starts.get(one.place, 0))
        end = max(first, min(one.end_offset, ends.get(one.place, 0)))
        lost = one.end_offset - one.first_offset - (end - first)
        if lost:
            account.add_problem(NO_SUCH_OFFSET, lost)
        if first < end:
            found.append(one._replace(first_offset=first, end_offset=end))
    return found


def candidates_in(span: Span, reader: RangeReader) -> Iterator[list[Candidate]]:
    """All candidates of a span in order, as lists."""
    ends = [one.end_offset for one in span.ranges]
    for messages in reader.read(span.offsets):
        if span.ranges[0].kind == DEAD_LETTERS:
            yield [dead_letter(message) for message in messages]
        else:
            yield list(_records(messages, span, ends))


def _records(messages: Sequence[Any], span: Span, ends: Sequence[int]) -> Iterator[Candidate]:
    for message in messages:
        source = span.ranges[bisect_right(ends, message.offset())]
        if message.offset() >= source.first_offset:
            yield _record(message, source)


def _record(message: Any, source: SourceRange) -> Candidate:
    headers, problem = headers_of(message)
    return Candidate(
        from_topic=source.topic,
        from_partition=source.partition,
        from_offset=message.offset(),
        topic=source.topic,
        partition=source.partition,
        offset=message.offset(),
        group_id=source.group_id,
        reason=source.reason,
        delivery_count=source.delivery_count,
        time_ms=message.timestamp()[1] if source.time_ms < 0 else source.time_ms,
        key=bytes_of(message.key()),
        value=bytes_of(message.value()),
        headers=headers,
        has_content=True,
        problem=problem,
    )
