"""Reads the records of a range of offsets of one partition, exactly, in order, in lists of confluent-kafka messages.

The reader finds the end of a range by position, not by counting: control batches, aborted transactions and compaction
leave gaps, so a range may have fewer records than offsets, or none. It is done at a record at or beyond the end, or
when the log itself ends there (librdkafka's partition end event has the position). It fails if nothing arrives for
`timeout_s`, or if the log is shorter than the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kshare_kafka_client.properties import open_consumer, reader_properties
from kshare_kafka_client.topics import KafkaUnavailable, Partition, end_offsets, failure, start_offsets

POLL_S = 0.02
MESSAGES_LIMIT = 5_000
"""Messages of one list; their bytes are bounded by librdkafka's queue (`queued.max.messages.kbytes`)."""
DEFAULT_TIMEOUT_S = 120.0


class OffsetRange(NamedTuple):
    """Offsets first_offset .. end_offset - 1 of a partition."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int

    @property
    def place(self) -> Partition:
        return Partition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.first_offset}-{self.end_offset - 1}"


class OffsetsLost(RuntimeError):
    """Requested offsets are not in the log: retention removed them, or they belong to another topic."""


def read_range(
    asked: OffsetRange,
    properties: Mapping[str, str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    must_be_whole: bool = True,
) -> Iterator[list[Message]]:
    """The records of one range; see `RangeReader`."""
    if asked.first_offset >= asked.end_offset:
        return
    with RangeReader(properties, timeout_s=timeout_s, must_be_whole=must_be_whole) as reader:
        yield from reader.read(asked)


class RangeReader:
    """A consumer that reads one range after another; a context manager that closes it."""

    def __init__(
        self, properties: Mapping[str, str], *, timeout_s: float = DEFAULT_TIMEOUT_S, must_be_whole: bool = True
    ) -> None:
        self._properties = properties
        self._consumer = open_consumer(reader_properties(properties))
        self._timeout_s = timeout_s
        self._must_be_whole = must_be_whole

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def consumer(self) -> Consumer:
        """The consumer, for the functions of `kshare_kafka_client.topics`."""
        return self._consumer

    def read(self, asked: OffsetRange) -> Iterator[list[Message]]:
        """The records of the range, in lists of at most MESSAGES_LIMIT.

        OffsetsLost if the log does not contain the whole range; with `must_be_whole` False, only the remaining
        records. KafkaUnavailable if the cluster sends nothing for `timeout_s`.
        """
        if asked.first_offset < asked.end_offset:
            reading = _RangeReading(
                self._consumer,
                asked,
                self._bounds,
                timeout_s=self._timeout_s,
                must_be_whole=self._must_be_whole,
            )
            yield from reading.lists()

    def _bounds(self, place: Partition) -> tuple[int, int]:
        """The start and end offset of the log, open transactions included."""
        everything = {**self._properties, "isolation.level": "read_uncommitted"}
        consumer = open_consumer(reader_properties(everything))
        try:
            return start_offsets(consumer, [place])[place], end_offsets(consumer, [place])[place]
        finally:
            consumer.close()


class _RangeReading:
    def __init__(
        self,
        consumer: Consumer,
        asked: OffsetRange,
        bounds: Callable[[Partition], tuple[int, int]],
        *,
        timeout_s: float,
        must_be_whole: bool,
    ) -> None:
        self._consumer = consumer
        self._bounds = bounds
        self._asked = asked
        self._timeout_s = timeout_s
        self._must_be_whole = must_be_whole
        self._position = asked.first_offset
        self._silent_s = 0.0
        self._done = False

    def lists(self) -> Iterator[list[Message]]:
        self._assign(self._asked.first_offset)
        while not self._done:
            wanted = min(MESSAGES_LIMIT, self._asked.end_offset - self._position)
            try:
                messages = self._consumer.consume(wanted, POLL_S)
            except KafkaException as error:
                raise failure(f"reading {self._asked}", error) from None
            records = self._records_of(messages)
            if records:
                yield records
            self._note_silence(bool(messages))

    def _assign(self, offset: int) -> None:
        self._position = offset
        self._consumer.assign([TopicPartition(self._asked.topic, self._asked.partition, offset)])

    def _note_silence(self, heard: bool) -> None:
        self._silent_s = 0.0 if heard else self._silent_s + POLL_S
        if self._silent_s >= self._timeout_s and not self._done:
            raise KafkaUnavailable(
                f"reading {self._asked} stopped at offset {self._position}: "
                f"nothing came for {self._timeout_s:g} s (kafkaConsumer.pollTimeoutMs)"
            )

    def _records_of(self, messages: list[Message]) -> list[Message]:
        """The messages that are in the range; advances the position and detects the end."""
        end_offset = self._asked.end_offset
        records: list[Message] = []
        for message in messages:
            if self._done:
                break
            error = message.error()
            if error is not None and error.fatal():
                raise failure(f"reading {self._asked}", KafkaException(error))
            if (message.topic(), message.partition()) != self._asked.place:
                continue  # of the assignment before this one
            if error is not None:
                self._meet(error, message)
                continue
            offset = _offset_of(message)
            if offset >= end_offset:
                self._done = True
            elif offset >= self._position:
                records.append(message)
                self._position = offset + 1
        if self._position >= end_offset:
            self._done = True
        return records

    def _meet(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._meet_log_end(_offset_of(message))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._meet_removed_offsets()
        elif not error.retriable():
            raise failure(f"reading {self._asked}", KafkaException(error))

    def _meet_log_end(self, offset: int) -> None:
        """OffsetsLost for a log shorter than the range. With an open transaction it may still grow."""
        if offset >= self._asked.end_offset:
            self._done = True
            return
        _, end = self._bounds(self._asked.place)
        if end < self._asked.end_offset:
            self._lose(f"the log ends at offset {end}")
            self._done = True

    def _meet_removed_offsets(self) -> None:
        start, end = self._bounds(self._asked.place)
        if self._position < start:
            self._lose(f"the log begins at offset {start}")
            if start < self._asked.end_offset:
                self._assign(start)
            else:
                self._done = True
        elif self._position > end:
            self._lose(f"the log ends at offset {end}")
            self._done = True
        else:
            self._assign(self._position)

    def _lose(self, why: str) -> None:
        if self._must_be_whole:
            raise OffsetsLost(
                f"offsets of {self._asked} are not there any more: {why}. "
                "With failOnDataLoss=false they are passed over"
            )


def _offset_of(message: Any) -> int:
    offset = message.offset()
    return -1 if offset is None else int(offset)
