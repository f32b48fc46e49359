"""The classes that Spark calls: `LogDataSource`, its batch reader and its stream reader.

The driver (`partitions`, offsets) fetches the start and end offsets of logs; each worker (`read`) reads one range.
Spark sends readers to workers, so they hold options only; the driver's consumer is created on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kshare_kafka_client.properties import InvalidOption, open_consumer, reader_properties
from kshare_kafka_client.range_reader import OffsetRange, OffsetsLost, read_range
from kshare_kafka_client.topics import Partition, UnknownTopic, end_offsets, partitions_of, start_offsets
from kshare_spark.log_source.arrow import record_batch
from kshare_spark.log_source.offsets import decode_offset, encode_offset, next_offset, ranges_between, split
from kshare_spark.log_source.options import (
    EARLIEST,
    EARLIEST_NUMBER,
    LATEST,
    LATEST_NUMBER,
    LogSourceOptions,
    StartingOffsets,
    parse_options,
)
from kshare_spark.record_columns import COLUMNS, COLUMNS_WITH_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class LogDataSource(DataSource):
    """The format `kshare-log`; see `options` for its options."""

    @classmethod
    def name(cls) -> str:
        return "kshare-log"

    def schema(self) -> StructType:
        return _columns(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(_checked(parse_options(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _checked(parse_options(self.options), schema)
        if options.ending_offsets != LATEST:
            raise InvalidOption("option endingOffsets is for batch reading only; a stream has no end")
        return LogStreamReader(options)


def _columns(options: LogSourceOptions) -> StructType:
    return COLUMNS_WITH_HEADERS if options.include_headers else COLUMNS


def _checked(options: LogSourceOptions, schema: StructType) -> LogSourceOptions:
    if schema != _columns(options):
        raise InvalidOption(
            f"the columns of kshare-log are {', '.join(_columns(options).fieldNames())}; it takes no other schema"
        )
    return options


@dataclass
class RangePartition(InputPartition):
    """The range of one task."""

    asked: OffsetRange


def _read(options: LogSourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):  # Spark's placeholder for an empty list of partitions
        return
    asked = partition.asked
    for messages in read_range(
        asked,
        options.properties,
        timeout_s=options.poll_timeout_s,
        must_be_whole=options.fail_on_data_loss,
    ):
        yield record_batch(asked.topic, asked.partition, messages, include_headers=options.include_headers)


class LogPlaces:
    """The partitions of the options' topics and their offsets; used in the driver."""

    def __init__(self, options: LogSourceOptions) -> None:
        self._options = options
        self._opened: Consumer | None = None

    def __reduce__(self) -> Any:
        return LogPlaces, (self._options,)

    @property
    def _consumer(self) -> Consumer:
        if self._opened is None:
            self._opened = open_consumer(reader_properties(self._options.properties))
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def partitions(self, *, may_be_missing: bool) -> list[Partition]:
        """The existing partitions to read; UnknownTopic for missing ones unless `may_be_missing`."""
        by_topic = partitions_of(self._consumer, self._options.topics)
        existing = [partition for partitions in by_topic.values() for partition in partitions]
        missing = [topic for topic in self._options.topics if topic not in by_topic]
        if self._options.assigned:
            missing = [str(partition) for partition in self._options.assigned if partition not in existing]
            existing = [partition for partition in self._options.assigned if partition in existing]
        if missing and not may_be_missing:
            raise UnknownTopic(f"there is no {', '.join(missing)} in the cluster")
        return existing

    def offsets(self, name: str, wanted: StartingOffsets, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset of each partition by option `name`; InvalidOption for missing or unknown partitions."""
        if wanted == EARLIEST:
            return start_offsets(self._consumer, partitions)
        if isinstance(wanted, str):
            return end_offsets(self._consumer, partitions)
        self._must_fit(name, wanted, partitions)
        earliest = start_offsets(self._consumer, [one for one in partitions if wanted[one] == EARLIEST_NUMBER])
        latest = end_offsets(self._consumer, [one for one in partitions if wanted[one] == LATEST_NUMBER])
        return {**wanted, **earliest, **latest}

    def _must_fit(self, name: str, wanted: Mapping[Partition, int], partitions: Sequence[Partition]) -> None:
        left_out = [str(partition) for partition in partitions if partition not in wanted]
        unknown = [str(partition) for partition in wanted if partition not in partitions]
        if left_out:
            raise InvalidOption(f"option {name} must name every partition; it leaves out {', '.join(left_out)}")
        if unknown:
            raise InvalidOption(f"option {name} names {', '.join(unknown)}, which is not read or does not exist")

    def starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return start_offsets(self._consumer, partitions)

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return end_offsets(self._consumer, partitions)


def _must_not_have_shrunk(before: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
    for partition, position in before.items():
        end = ends.get(partition)
        if end is None or end < position:
            raise OffsetsLost(
                f"{_shrunk(partition, position, end)}. With failOnDataLoss=false the stream continues at the end of "
                "such a log, or at its start with offsetReset=earliest"
            )


def _shrunk(partition: Partition, position: int, end: int | None) -> str:
    there = "does not exist any more" if end is None else f"ends at offset {end}"
    read = f"{partition} was read up to offset {position} and {there}"
    return f"{read}: records are lost, or it is another topic of this name"


class LogReader(DataSourceReader):
    """spark.read: everything from startingOffsets to endingOffsets as it is when the query is planned."""

    def __init__(self, options: LogSourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        places = LogPlaces(self._options)
        try:
            found = places.partitions(may_be_missing=False)
            firsts = places.offsets("startingOffsets", self._options.starting_offsets or EARLIEST, found)
            ends = places.offsets("endingOffsets", self._options.ending_offsets, found)
        finally:
            places.close()
        ranges = [OffsetRange(*partition, firsts[partition], ends[partition]) for partition in found]
        whole = [one for one in ranges if one.first_offset < one.end_offset]
        return [RangePartition(one) for one in split(whole, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """spark.readStream; offsets as in `kshare_spark.log_source.offsets`."""

    def __init__(self, options: LogSourceOptions) -> None:
        self._options = options
        self._places = LogPlaces(options)
        self._available_now: dict[Partition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        partitions = self._places.partitions(may_be_missing=True)
        wanted = self._options.starting_offsets or LATEST
        firsts = self._places.offsets("startingOffsets", wanted, partitions)
        return encode_offset(OffsetRange(*partition, firsts[partition], firsts[partition]) for partition in partitions)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = self._places.ends(self._places.partitions(may_be_missing=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._places.ends(self._places.partitions(may_be_missing=True))
        before = {partition: found.end_offset for partition, found in decode_offset(start).items()}
        if self._options.fail_on_data_loss:
            _must_not_have_shrunk(before, ends)
        if self._available_now is not None:
            target = self._available_now
            ends = {place: min(end, target[place]) for place, end in ends.items() if place in target}
        # With the ends of AvailableNow, too: a log that was short when it began may have grown meanwhile.
        resets = {place: end for place, end in ends.items() if end < before.get(place, 0)}
        if self._options.offset_reset == EARLIEST:
            starts = self._places.starts(resets)
            resets = {place: min(starts[place], end) for place, end in resets.items()}
        for place, offset in resets.items():
            logger.warning("%s; it continues at offset %d", _shrunk(place, before[place], ends[place]), offset)
        return next_offset(start, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None, resets=resets)

    def reportLatestOffset(self) -> dict[str, Any]:
        partitions = self._places.partitions(may_be_missing=True)
        ends = self._places.ends(partitions)
        return encode_offset(OffsetRange(*partition, ends[partition], ends[partition]) for partition in partitions)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RangePartition(one) for one in split(ranges_between(start, end), self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        self._places.close()
