"""Which offsets a redrive looks at, and the candidates that lie there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from kshare_pipeline.kafka.range_reader import OffsetRange, RangeReader
from kshare_pipeline.kafka.topics import (
    Partition,
    UnknownTopic,
    end_offsets,
    offsets_at,
    partitions_of,
    start_offsets,
)
from kshare_pipeline.redrive.archived_runs import archived_runs
from kshare_pipeline.redrive.candidates import REASON_GIVEN, Candidate, bytes_of, dead_letter, headers_of
from kshare_pipeline.redrive.request import Account, BadRequest, RedriveRequest

DEAD_LETTERS, RECORDS = "dead_letters", "records"
NO_SUCH_OFFSET = "the log does not have this offset"


class SourceRange(NamedTuple):
    """Offsets to look at: of a dead-letter topic, or records themselves; of these the range says why."""

    kind: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    group_id: str = ""
    reason: str = ""
    delivery_count: int = 0
    time_ms: int = -1
    """-1: that of each record."""

    @property
    def place(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first_offset, self.end_offset)


def source_ranges(request: RedriveRequest, reader: RangeReader, account: Account) -> list[SourceRange]:
    """By topic, partition and offset. Given offsets that no log has are problems of the account."""
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
    return sorted(found, key=lambda one: one[1:4])


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
    asked = [partition for partition in existing if any(one.place == partition for one in ranges)]
    starts, ends = start_offsets(consumer, asked), end_offsets(consumer, asked)
    found: list[SourceRange] = []
    for one in ranges:
        first = max(one.first_offset, starts.get(one.place, 0))
        end = max(first, min(one.end_offset, ends.get(one.place, 0)))
        lost = one.end_offset - one.first_offset - (end - first)
        if lost:
            account.add_problem(NO_SUCH_OFFSET, lost)
        if first < end:
            found.append(one._replace(first_offset=first, end_offset=end))
    return found


def candidates_in(source: SourceRange, reader: RangeReader) -> Iterator[list[Candidate]]:
    """All candidates of a range, in order, in lists."""
    for messages in reader.read(source.offsets):
        if source.kind == DEAD_LETTERS:
            yield [dead_letter(message) for message in messages]
        else:
            yield [_record(message, source) for message in messages]


def _record(message: Any, source: SourceRange) -> Candidate:
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
        headers=headers_of(message),
        has_content=True,
    )
