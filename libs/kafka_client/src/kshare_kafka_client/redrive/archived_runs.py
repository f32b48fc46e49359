"""Records that share groups archived without a dead letter, by the delivery history.

Records count that were rejected or reached the delivery limit. Gaps of the log, records that retention removed, and
offsets with a dead letter do not count: the latter are moved from their dead-letter topic. The history may have lost
events (a crash, a full buffer), so it may have fewer archived records than there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kshare_core.delivery_history import (
    HISTORY_TOPIC,
    REASON_DELIVERY_COUNT_LIMIT,
    REASON_REJECTED,
    DeliveryEvent,
    EventType,
    HistoryRecord,
    decode_history_record,
)
from kshare_kafka_client.range_reader import OffsetRange, RangeReader
from kshare_kafka_client.redrive.ledger import joined
from kshare_kafka_client.redrive.request import Account, RedriveFailed
from kshare_kafka_client.topics import UnknownTopic, end_offsets, partitions_of, start_offsets, topic_ids

REASONS = (REASON_REJECTED, REASON_DELIVERY_COUNT_LIMIT)
OTHER_TOPIC = "its topic was deleted since; another one may have its name"


class ArchivedRun(NamedTuple):
    """Offsets first_offset..last_offset that a group archived at one moment."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    group_id: str
    reason: str
    delivery_count: int
    time_ms: int


class _Place(NamedTuple):
    topic: str
    topic_id: str
    partition: int


def archived_runs(
    reader: RangeReader, groups: Sequence[str], properties: Mapping[str, str], account: Account
) -> list[ArchivedRun]:
    """The archived runs of `groups`, without overlaps: an offset that several groups archived counts for the first."""
    history = _History(groups)
    existing = partitions_of(reader.consumer, [HISTORY_TOPIC]).get(HISTORY_TOPIC)
    if not existing:
        raise UnknownTopic(f"there is no delivery history: topic {HISTORY_TOPIC} does not exist")
    starts, ends = start_offsets(reader.consumer, existing), end_offsets(reader.consumer, existing)
    for partition in existing:
        for messages in reader.read(OffsetRange(*partition, starts[partition], ends[partition])):
            for message in messages:
                history.add(_decoded(message))
    return _of_living_topics(history.runs(), reader, properties, account)


def _decoded(message: Any) -> HistoryRecord:
    try:
        return decode_history_record(message.value() or b"")
    except ValueError as problem:
        place = f"{message.topic()}:{message.partition()}:{message.offset()}"
        raise RedriveFailed(f"the record at {place} is no delivery history: {problem}") from None


def _of_living_topics(
    found: Mapping[_Place, Sequence[ArchivedRun]], reader: RangeReader, properties: Mapping[str, str], account: Account
) -> list[ArchivedRun]:
    named = tuple(dict.fromkeys(place.topic for place in found))
    ids = topic_ids(properties, list(partitions_of(reader.consumer, named)))
    runs: list[ArchivedRun] = []
    for place, archived in found.items():
        if ids.get(place.topic) == place.topic_id:
            runs.extend(archived)
        else:
            account.add_problem(OTHER_TOPIC, sum(run.last_offset - run.first_offset + 1 for run in archived))
    return runs


class _History:
    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = dict.fromkeys(groups)
        self._archived: dict[_Place, list[ArchivedRun]] = {}
        self._with_letters: dict[tuple[_Place, str], list[tuple[int, int]]] = {}

    def add(self, record: HistoryRecord) -> None:
        if record.group not in self._groups:
            return
        place = _Place(record.topic, record.topic_id, record.partition)
        for event in record.events:
            first, last = event.first_offset, event.last_offset
            if first is None or last is None:
                continue
            if event.event is EventType.DEAD_LETTERED:
                self._with_letters.setdefault((place, record.group), []).append((first, last))
            elif event.event is EventType.ARCHIVED and event.reason in REASONS:
                self._archived.setdefault(place, []).append(_run(record, event, first, last))

    def runs(self) -> dict[_Place, list[ArchivedRun]]:
        found: dict[_Place, list[ArchivedRun]] = {}
        for place, archived in self._archived.items():
            taken: list[tuple[int, int]] = []
            letters = {group: joined(runs) for (at, group), runs in self._with_letters.items() if at == place}
            for run in sorted(archived, key=lambda one: one.time_ms):
                left = [
                    part
                    for free in without((run.first_offset, run.last_offset), letters.get(run.group_id, []))
                    for part in without(free, taken)
                ]
                found.setdefault(place, []).extend(
                    run._replace(first_offset=first, last_offset=last) for first, last in left
                )
                for part in left:
                    taken.insert(bisect_left(taken, part), part)
        return found


def _run(record: HistoryRecord, event: DeliveryEvent, first: int, last: int) -> ArchivedRun:
    return ArchivedRun(
        record.topic,
        record.partition,
        first,
        last,
        record.group,
        event.reason or "",
        event.delivery_count or 0,
        event.time_ms,
    )


def _last(run: tuple[int, int]) -> int:
    return run[1]


def without(run: tuple[int, int], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of a run outside of `taken`, whose runs ascend and do not overlap."""
    first, last = run
    parts: list[tuple[int, int]] = []
    for index in range(bisect_left(taken, first, key=_last), len(taken)):
        low, high = taken[index]
        if low > last:
            break
        if low > first:
            parts.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        parts.append((first, last))
    return parts
