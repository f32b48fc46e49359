"""The engine with Spark: many tasks read, complete and select candidates; one task for each partition moves them.

There are two stages. The first turns ranges of offsets into rows (CANDIDATES), to which the SQL expression applies. The
second gets all rows of a partition by offset, and moves them as the direct engine does. A repeated task finds the
records that its first attempt moved in the ledger, and counts them as moved earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException

from kshare_kafka_client.range_reader import RangeReader
from kshare_kafka_client.redrive.candidates import Candidate, matches, matches_key
from kshare_kafka_client.redrive.ledger import create_ledger
from kshare_kafka_client.redrive.mover import PartitionMover
from kshare_kafka_client.redrive.originals import Originals
from kshare_kafka_client.redrive.pace import Pace
from kshare_kafka_client.redrive.request import Account, BadRequest, RedriveFailed, RedriveRequest
from kshare_kafka_client.redrive.sources import SPAN_LIMIT_OFFSETS, Span, candidates_in, source_ranges, spans_of
from kshare_kafka_client.topics import Partition, topic_ids
from kshare_spark.log_source.offsets import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CANDIDATES = (
    "from_topic string, from_partition int, from_offset bigint, topic string, partition int, offset bigint, "
    "group_id string, reason string, delivery_count int, time timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, problem string"
)
"""The columns of an SQL expression: `from_…` is the dead letter (or the archived record itself), `topic`, `partition`
and `offset` the record at its source, `time` when it was dead-lettered, archived or, of given offsets, appended.
`problem` is empty unless it cannot be moved. Text in key and value: `CAST(value AS STRING)`."""

_HEADERS: Any = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_COLUMNS: list[tuple[str, Any]] = [
    ("from_topic", pa.string()),
    ("from_partition", pa.int32()),
    ("from_offset", pa.int64()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("group_id", pa.string()),
    ("reason", pa.string()),
    ("delivery_count", pa.int32()),
    ("time", pa.timestamp("us", tz="UTC")),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", _HEADERS),
    ("problem", pa.string()),
]
_SCHEMA = pa.schema(_COLUMNS)
_PLACE = ("from_topic", "from_partition", "from_offset")


def redrive_with_spark(request: RedriveRequest, spark: SparkSession) -> Account:
    """Moves the requested records, or counts them in a dry run. BadRequest, RedriveFailed, KafkaUnavailable."""
    account = Account()
    with RangeReader(request.properties, timeout_s=request.timeout_s, must_be_whole=False) as reader:
        ranges = source_ranges(request, reader, account)
    ids = topic_ids(request.properties, list(dict.fromkeys(one.topic for one in ranges)))
    pieces = [piece for span in spans_of(ranges) for piece in _pieces(span)]
    if not pieces:
        return account
    if not request.dry_run:
        create_ledger(request.properties)
    selected = _selected(request, spark, pieces)
    writers = min(len({one.place for one in ranges}), spark.sparkContext.defaultParallelism)
    by_place = selected.repartition(writers, *_PLACE[:2]).sortWithinPartitions(*_PLACE)
    moving = by_place.mapInArrow(partial(_move, request, ids, writers), "account string")
    try:
        rows = moving.collect()
    except PySparkException as error:
        raise RedriveFailed(f"redrive broke off: {_last_line(error)}. Run it again for the rest") from None
    for row in rows:
        account.add(Account.from_json(row.account))
    return account


def _pieces(span: Span) -> Iterator[Span]:
    """A long range is read by several tasks."""
    if len(span.ranges) > 1:
        yield span
        return
    (one,) = span.ranges
    count = -(-(one.end_offset - one.first_offset) // SPAN_LIMIT_OFFSETS)
    for piece in split([one.offsets], count):
        yield Span((one._replace(first_offset=piece.first_offset, end_offset=piece.end_offset),))


def _selected(request: RedriveRequest, spark: SparkSession, pieces: Sequence[Span]) -> DataFrame:
    tasks = min(len(pieces), 4 * spark.sparkContext.defaultParallelism)
    ranges = spark.createDataFrame([(piece.to_json(),) for piece in pieces], "span string").repartition(tasks)
    candidates = ranges.mapInArrow(partial(_read, request), CANDIDATES)
    if request.where is None:
        return candidates
    try:
        return candidates.where(request.where)
    except (AnalysisException, ParseException) as error:
        text = (error.getMessage() or str(error)).split("SQLSTATE")[0].strip()
        raise BadRequest(f"the SQL expression {request.where!r} is wrong: {text}") from None


def _last_line(error: PySparkException) -> str:
    """The text of the exception in the Python worker: the last line that has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "SQLSTATE" not in line]
    named = [line for line in lines if line.startswith(("kshare.", "kshare_")) and ": " in line]
    return named[-1].partition(": ")[2] if named else (lines or ["no reason was given"])[0]


def _read(request: RedriveRequest, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage one, in Python workers: ranges in, selected candidates out."""
    with (
        RangeReader(request.properties, timeout_s=request.timeout_s, must_be_whole=False) as reader,
        Originals(request.properties, timeout_s=request.timeout_s) as originals,
    ):
        for batch in batches:
            for text in batch.column("span").to_pylist():
                for candidates in candidates_in(Span.from_json(text), reader):
                    selected = [candidate for candidate in candidates if matches(candidate, request.selection)]
                    completed = originals.completed(selected)
                    yield to_arrow([one for one in completed if matches_key(one, request.selection)])


def _move(
    request: RedriveRequest, ids: Mapping[str, str], writers: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stage two, in Python workers: candidates by place and offset in, an account out."""
    import time

    account = Account()
    pace = Pace(None if request.rate is None else request.rate / writers, time.monotonic, time.sleep)
    lists = (found for batch in batches for found in _by_place(from_arrow(batch)))
    for place, of_place in groupby(lists, key=lambda found: found[0].place):
        with PartitionMover(place, ids[place.topic], request, account, pace) as mover:
            for candidates in of_place:
                mover.move(candidates)
    yield pa.RecordBatch.from_pydict({"account": [account.to_json()]})


def _by_place(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    for _, found in groupby(candidates, key=_place_of):
        yield list(found)


def _place_of(candidate: Candidate) -> Partition:
    return candidate.place


def to_arrow(candidates: Sequence[Candidate]) -> pa.RecordBatch:
    """Completed candidates as rows."""
    columns: dict[str, list[Any]] = {
        name: [getattr(candidate, name) for candidate in candidates] for name, _ in _COLUMNS if name != "time"
    }
    columns["time"] = [candidate.time_ms * 1000 for candidate in candidates]
    arrays = [pa.array(columns[name], kind) for name, kind in _COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def from_arrow(batch: pa.RecordBatch) -> list[Candidate]:
    """The inverse."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "time"}
    columns["time_ms"] = [int(time) // 1000 for time in batch.column("time").cast(pa.int64()).to_pylist()]
    columns["headers"] = [[(pair["key"], pair["value"]) for pair in pairs] for pairs in columns["headers"]]
    columns["has_content"] = [not problem for problem in columns["problem"]]
    rows = zip(*columns.values(), strict=True)
    return [Candidate(**dict(zip(columns, row, strict=True))) for row in rows]
