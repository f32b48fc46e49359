"""The executors' part: reads runs of offsets as Arrow batches, by plain Fetch with topic ids, outside of the group.

A worker process keeps its connections for the next task. Fetch is read_uncommitted, because the acquisition has already
decided which transactional records are delivered. Records that are no longer in the log (retention, DeleteRecords, a
deleted topic) raise DataLoss unless failOnDataLoss is false. Offsets without a record (compaction, markers) are no
loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from kshare_core.errors import ErrorCode
from kshare_spark.record_columns import MICROSECONDS_PER_MS, timestamps
from kshare_spark.share_source.cluster import EARLIEST_TIMESTAMP, Cluster, TryAgain, UnknownTopic, bytes_of_id, check
from kshare_spark.share_source.columns import columns
from kshare_spark.share_source.options import ClientProperties, ReadOptions
from kshare_spark.share_source.runs import Place, Run, RunMap
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.responses.fetch import PartitionData
from kshare_wire.record_batches import HEADER_LENGTH, LENGTH_PREFIX, BatchHeader, check_crc, read_header
from kshare_wire.record_reading import record_objects

logger = logging.getLogger(__name__)

FETCH_VERSION = 13
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 16 * 1024 * 1024
FETCH_WAIT_MS = 500
"""The leader's wait for records. Acquired records are in the log, except at a leader that has just started."""
_LENGTH_AT = 8

_clusters: dict[ClientProperties, Cluster] = {}


class DataLoss(RuntimeError):
    """Records of a batch are no longer in the log; the text names them, and the option that skips them."""


@dataclass
class RunsPartition(InputPartition):
    """One Spark task's share of a batch. Spark pickles it."""

    runs: RunMap
    lock_deadline_ms: int


def read_runs(options: ReadOptions, runs: RunMap, lock_deadline_ms: int) -> Iterator[pa.RecordBatch]:
    """All records of the runs, by place in offset order; DataLoss, ClusterError."""
    cluster = _clusters.get(options.client)
    if cluster is None:
        cluster = _clusters[options.client] = Cluster(options.client)
    missing: set[str] = set()
    for place, found in runs.items():
        rows = _Rows(place, options.include_headers, lock_deadline_ms)
        for position, records in _fetched(cluster, options, place, found, missing):
            for header in _whole_batches(records):
                if not header.is_control:
                    rows.add(records, header, found, position)
                if rows.is_full:
                    yield rows.take()
        if rows:
            yield rows.take()


def close_connections() -> None:
    """Closes the connections that this process keeps for its next task."""
    for cluster in _clusters.values():
        cluster.close()
    _clusters.clear()


def _fetched(
    cluster: Cluster, options: ReadOptions, place: Place, runs: list[Run], missing: set[str]
) -> Iterator[tuple[int, memoryview]]:
    """Record batches that contain the runs, each with the first offset that is needed of it.

    `missing` gets a topic that does not exist, so that the time for retries is spent once for all its runs.
    """
    position = runs[0].first
    for run in runs:
        position = max(position, run.first)
        while position <= run.last:
            data = _fetched_once(cluster, options, place, position, missing)
            if data.error_code:
                position = _after_loss(cluster, options, place, position, run, data.error_code)
                continue
            records = memoryview(b"".join(data.records or ()))
            last = max(header.last_offset for header in _whole_batches(records))
            yield position, records
            position = max(position, last + 1)


def _fetched_once(
    cluster: Cluster, options: ReadOptions, place: Place, position: int, missing: set[str]
) -> PartitionData:
    """The response of `_fetch`, or UNKNOWN_TOPIC_ID for a topic that does not exist any more."""
    if place.topic not in missing:
        try:
            return cluster.until_done(
                f"reading {place.topic}-{place.partition} from offset {position}",
                lambda: _fetch(cluster, options, place, position),
            )
        except UnknownTopic:
            missing.add(place.topic)
    return PartitionData(partition_index=place.partition, error_code=ErrorCode.UNKNOWN_TOPIC_ID)


def _fetch(cluster: Cluster, options: ReadOptions, place: Place, position: int) -> PartitionData:
    """The partition's response with at least one batch, or with an error that means data loss."""
    client = options.client
    partition = FetchPartition(
        partition=place.partition, fetch_offset=position, partition_max_bytes=client.partition_fetch_bytes
    )
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=client.fetch_max_bytes,
        topics=[FetchTopic(topic_id=bytes_of_id(place.topic_id), partitions=[partition])],
    )
    answer = cluster.ask_leader(place.topic, place.partition, request, FETCH_VERSION)
    check(answer.error_code, "Fetch")
    data = answer.responses[0].partitions[0]
    code = data.error_code
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return data
    if code == ErrorCode.UNKNOWN_TOPIC_ID:
        view = cluster.topics([place.topic], fresh=True)[place.topic]
        if view.topic_id != place.topic_id:
            return data
    if code:
        cluster.forget_leaders([place.topic])
    check(code, f"{place.topic}-{place.partition} at offset {position}")
    if not any(True for _ in _whole_batches(memoryview(b"".join(data.records or ())))):
        raise TryAgain(f"{place.topic}-{place.partition} has nothing at offset {position}")
    return data


def _after_loss(cluster: Cluster, options: ReadOptions, place: Place, position: int, run: Run, code: int) -> int:
    """The offset to continue at; DataLoss if the options demand it."""
    where = run.last + 1
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        start = cluster.listed_offset(place.topic, place.partition, EARLIEST_TIMESTAMP)
        if start > position:
            where = min(start, run.last + 1)
    text = f"offsets {position} to {where - 1} of {place.topic}-{place.partition} were acquired, and are not in the log"
    if options.fail_on_data_loss:
        raise DataLoss(f"{text} any more; with failOnDataLoss=false such records are passed over")
    logger.warning("%s any more; passed over", text)
    return where


def _whole_batches(records: memoryview) -> Iterator[BatchHeader]:
    """The complete batches of a response, which may end within a batch."""
    position = 0
    while len(records) - position >= HEADER_LENGTH:
        length = int.from_bytes(records[position + _LENGTH_AT : position + LENGTH_PREFIX], "big", signed=True)
        if length > len(records) - position - LENGTH_PREFIX:
            return
        header = read_header(records, position)
        yield header
        position += header.size


class _Rows:
    """Rows of one place, by column, collected up to the size of an Arrow batch."""

    def __init__(self, place: Place, include_headers: bool, lock_deadline_ms: int) -> None:
        self._place = place
        self._schema = to_arrow_schema(columns(include_headers=include_headers), timezone="UTC")
        self._include_headers = include_headers
        self._lock_deadline_ms = lock_deadline_ms
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._timestamp_types: list[int] = []
        self._headers: list[list[dict[str, Any]]] = []
        self._counts: list[int] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= ROWS_PER_BATCH or self._bytes >= BYTES_PER_BATCH

    def add(self, records: memoryview, header: BatchHeader, runs: list[Run], start: int) -> None:
        """Adds the records of a batch that are in the runs, from offset `start` on; a leader sends whole batches."""
        within = [
            run._replace(first=max(run.first, start))
            for run in runs
            if run.first <= header.last_offset and run.last >= max(start, header.base_offset)
        ]
        if not within:
            return
        check_crc(records, header)
        found = record_objects(records[header.position : header.position + header.size])
        for run in within:
            is_all = run.first <= header.base_offset and run.last >= header.last_offset
            self._extend(
                found if is_all else [one for one in found if run.first <= one.offset <= run.last], header, run
            )

    def _extend(self, found: list[Any], header: BatchHeader, run: Run) -> None:
        self._keys += [one.key for one in found]
        self._values += [one.value for one in found]
        self._offsets += [one.offset for one in found]
        self._timestamps += [one.timestamp for one in found]
        self._timestamp_types += [int(header.is_log_append_time)] * len(found)
        self._counts += [run.delivery_count] * len(found)
        self._bytes += header.size
        if self._include_headers:
            self._headers += [[{"key": key, "value": value} for key, value in one.headers] for one in found]

    def take(self) -> pa.RecordBatch:
        """The collected rows as one Arrow batch with Spark's types."""
        count = len(self._offsets)
        stamp = pa.timestamp("us", tz="UTC")
        arrays = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.repeat(pa.scalar(self._place.topic), count),
            pa.repeat(pa.scalar(self._place.partition, pa.int32()), count),
            pa.array(self._offsets, pa.int64()),
            timestamps(self._timestamps),
            pa.array(self._timestamp_types, pa.int32()),
            pa.array(self._counts, pa.int32()),
            pa.repeat(pa.scalar(self._lock_deadline_ms * MICROSECONDS_PER_MS, stamp), count),
        ]
        if self._include_headers:
            arrays.insert(7, pa.array(self._headers, self._schema.field("headers").type))
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
