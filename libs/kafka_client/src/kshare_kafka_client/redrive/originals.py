"""The source records of candidates without content, read from their topics.

A dead letter has the topic's name, not its id: if the topic was deleted and created again, the offset has another
record or none. Copies (errors.deadletterqueue.copy.record.enable) do not have this problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from kshare_kafka_client.range_reader import OffsetRange, RangeReader
from kshare_kafka_client.redrive.candidates import Candidate, bytes_of, headers_of
from kshare_kafka_client.topics import Partition, partitions_of

SPAN_GAP_OFFSETS = 500
"""Offsets closer than this are read in one range: reading the records between is cheaper than another range."""
IS_GONE = "the record is not in its topic any more, and its dead letter has no copy"


class Originals:
    """Looks records up; a context manager, with a consumer of its own."""

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float) -> None:
        self._reader = RangeReader(properties, timeout_s=timeout_s, must_be_whole=False)
        self._partitions: dict[str, list[Partition]] = {}

    def __enter__(self) -> Originals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, value, trace)

    def completed(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The same candidates in the same order, each with its content or a `problem`."""
        checked = [self._checked(candidate) for candidate in candidates]
        wanted: dict[Partition, list[int]] = {}
        for candidate in checked:
            if not candidate.problem and not candidate.has_content:
                wanted.setdefault(Partition(candidate.topic, candidate.partition), []).append(candidate.offset)
        found = {place: self._records(place, offsets) for place, offsets in wanted.items()}
        return [_completed(candidate, found) for candidate in checked]

    def _checked(self, candidate: Candidate) -> Candidate:
        if candidate.problem:
            return candidate
        if candidate.topic not in self._partitions:
            existing = partitions_of(self._reader.consumer, [candidate.topic])
            self._partitions[candidate.topic] = existing.get(candidate.topic, [])
        partitions = self._partitions[candidate.topic]
        if not partitions:
            return candidate._replace(problem=f"topic {candidate.topic} does not exist")
        if Partition(candidate.topic, candidate.partition) not in partitions:
            return candidate._replace(problem=f"topic {candidate.topic} has no partition {candidate.partition}")
        return candidate

    def _records(self, place: Partition, offsets: Sequence[int]) -> dict[int, Any]:
        wanted = dict.fromkeys(offsets)
        found: dict[int, Any] = {}
        for span in spans(place, offsets):
            for messages in self._reader.read(span):
                _pick(messages, wanted, found)
        return found


def _pick(messages: Sequence[Any], wanted: Mapping[int, None], found: dict[int, Any]) -> None:
    found.update({message.offset(): message for message in messages if message.offset() in wanted})


def spans(place: Partition, offsets: Sequence[int]) -> Iterator[OffsetRange]:
    """Ranges that have all offsets, with gaps of less than SPAN_GAP_OFFSETS."""
    ordered = sorted(offsets)
    begin = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] - ordered[index - 1] > SPAN_GAP_OFFSETS:
            yield OffsetRange(*place, ordered[begin], ordered[index - 1] + 1)
            begin = index


def _completed(candidate: Candidate, found: Mapping[Partition, Mapping[int, Any]]) -> Candidate:
    if candidate.problem or candidate.has_content:
        return candidate
    message = found[Partition(candidate.topic, candidate.partition)].get(candidate.offset)
    if message is None:
        return candidate._replace(problem=IS_GONE)
    headers, problem = headers_of(message)
    return candidate._replace(
        key=bytes_of(message.key()),
        value=bytes_of(message.value()),
        headers=headers,
        has_content=True,
        problem=problem,
    )
