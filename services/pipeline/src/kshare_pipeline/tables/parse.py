"""Parses a record of the history topic into rows of `events`, or into a row of `quarantine` with the reason.

A record with a malformed frame goes to quarantine as a whole. If only some events are malformed, for example of an
unknown type, the others become rows, and the record is also in quarantine. So nothing is lost: a later version can read
it again, and finds the existing rows by their key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kshare_core.delivery_history import HISTORY_VERSION, EventType
from kshare_pipeline.history import HISTORY_SCHEMA

EVENT_KEY = ("leader", "incarnation", "group", "topic_id", "partition", "sequence")
"""The key of an event."""
TIME_LIMIT_MS = 253_402_300_800_000
"""The upper bound of times: the year 10000."""
NUMBER_LIMIT = 2**62
"""The upper bound of offsets and sequence numbers, so that their sums do not overflow."""
GROUP_LIMIT_BYTES = 249
"""The longest group in a folder's name, `group=…`, which has at most 255 bytes."""
ESCAPED = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""The characters that Spark writes as three bytes in a folder's name."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The name of Spark's folder for rows without a group."""
_CORRUPT = "_corrupt_record"
_READ_SCHEMA = StructType([*HISTORY_SCHEMA.fields, StructField(_CORRUPT, StringType())])
_FRAME_FIELDS = ("leader", "incarnation", "sequence", "topic", "topic_id", "partition", "state_epoch", "leader_epoch")
_PLAIN_EVENTS = (EventType.LOADED, EventType.UNLOADED, EventType.START_OFFSET_MOVED)
"""Events without a run of offsets."""
_WITH_START_OFFSET = (EventType.LOADED, EventType.START_OFFSET_MOVED)

RUN_TYPE = StructType(
    [
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("state", StringType()),
        StructField("delivery_count", IntegerType()),
    ]
)
EVENTS_SCHEMA = StructType(
    [
        StructField("leader", IntegerType()),
        StructField("incarnation", LongType()),
        StructField("sequence", LongType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("state_epoch", IntegerType()),
        StructField("leader_epoch", IntegerType()),
        StructField("event", StringType()),
        StructField("time_ms", LongType()),
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("records", LongType()),
        StructField("delivery_count", IntegerType()),
        StructField("member_id", StringType()),
        StructField("append_time_ms", LongType()),
        StructField("lock_deadline_ms", LongType()),
        StructField("start_offset", LongType()),
        StructField("reason", StringType()),
        StructField("dead_letter_topic", StringType()),
        StructField("runs", ArrayType(RUN_TYPE)),
        StructField("client_id", StringType()),
        StructField("date", DateType()),
        StructField("group", StringType()),
    ]
)
"""The last two are the partition columns. `records` is last_offset - first_offset + 1. Files of versions before
`client_id` are read with null there.
"""
QUARANTINE_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp_ms", LongType()),
        StructField("problem", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("date", DateType()),
    ]
)
QUARANTINE_KEY = ("topic", "partition", "offset", "timestamp_ms")
"""The key includes the time: a topic that was created again has the same offsets at other times."""


class Parsed(NamedTuple):
    """Rows of EVENTS_SCHEMA and QUARANTINE_SCHEMA; an event may still be in them twice."""

    events: DataFrame
    quarantine: DataFrame


def parse_history(records: DataFrame) -> Parsed:
    """Parses rows with the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp."""
    read = records.withColumn(
        "history",
        F.from_json(
            F.col("value").cast("string"), _READ_SCHEMA, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        ),
    ).withColumn("frame_problem", _frame_problem())
    events = F.when(F.col("frame_problem").isNull(), F.col("history.events"))
    checked = read.withColumn(
        "checked",
        F.transform(
            events, lambda event, at: F.struct(event.alias("it"), at.alias("at"), _problem(event).alias("bad"))
        ),
    )
    bad_events = F.filter(F.transform("checked", lambda one: one["bad"]), lambda problem: problem.isNotNull())
    problem = F.coalesce(F.col("frame_problem"), F.get(bad_events, F.lit(0)))
    return Parsed(_events(checked), _quarantine(checked.withColumn("problem", problem)))


def _frame_problem() -> Column:
    """The problem of a record apart from its events; null for none."""
    history = F.col("history")
    version = history["version"]
    missing = [
        F.when(history[name].isNull(), F.lit(f"{name} is missing")) for name in (*_FRAME_FIELDS, "group", "events")
    ]
    return F.coalesce(
        F.when(F.col("value").isNull(), F.lit("the record has no value")),
        F.when(
            version != HISTORY_VERSION,
            F.concat(F.lit("version "), version.cast("string"), F.lit(f"; this code reads {HISTORY_VERSION}")),
        ),
        F.when(history.isNull() | history[_CORRUPT].isNotNull(), F.lit("the value is no history record in JSON")),
        F.when(version.isNull(), F.lit("version is missing")),
        *missing,
        _group_problem(history["group"]),
        F.when(
            ~history["sequence"].between(0, NUMBER_LIMIT), F.concat(F.lit("sequence is "), _shown(history["sequence"]))
        ),
    )


def _group_problem(group: Column) -> Column:
    """The problem of a group that cannot be the name of a folder, which would fail the batch of all groups."""
    escaped = F.length(group) - F.length(F.regexp_replace(group, ESCAPED, ""))
    length = F.octet_length(group) + 2 * escaped
    limit = F.lit(f" bytes in a folder's name; at most {GROUP_LIMIT_BYTES} are possible")
    return F.coalesce(
        F.when(group == "", F.lit("group is empty")),
        F.when(group == NULL_FOLDER, F.concat(F.lit("group is "), group)),
        F.when(F.contains(group, F.lit("\0")), F.lit("group has a null character")),
        F.when(length > GROUP_LIMIT_BYTES, F.concat(F.lit("group has "), length.cast("string"), limit)),
    )


def _problem(event: Column) -> Column:
    """The problem of an event; null for none."""
    kind, first, last = event["event"], event["first_offset"], event["last_offset"]
    has_run = ~kind.isin(*_PLAIN_EVENTS)
    return F.coalesce(
        F.when(event.isNull(), F.lit("an event is null")),
        F.when(kind.isNull() | ~kind.isin(*EventType), F.concat(F.lit("unknown event "), _shown(kind))),
        F.when(
            event["time_ms"].isNull() | (event["time_ms"] < 0) | (event["time_ms"] >= TIME_LIMIT_MS),
            F.concat(F.lit("time_ms is "), _shown(event["time_ms"])),
        ),
        F.when(
            has_run & (first.isNull() | last.isNull() | (first < 0) | (last < first) | (last > NUMBER_LIMIT)),
            F.concat(kind, F.lit(" has the offsets "), _shown(first), F.lit(" to "), _shown(last)),
        ),
        F.when(
            kind.isin(*_WITH_START_OFFSET) & (event["start_offset"].isNull() | (event["start_offset"] < 0)),
            F.concat(kind, F.lit(" has the start_offset "), _shown(event["start_offset"])),
        ),
    )


def _shown(column: Column) -> Column:
    return F.coalesce(F.substring(column.cast("string"), 1, 80), F.lit("missing"))


def _events(checked: DataFrame) -> DataFrame:
    good = F.filter("checked", lambda one: one["bad"].isNull())
    rows = checked.select("history", F.explode(good).alias("one"))
    event, frame = F.col("one.it"), F.col("history")
    run = F.transform(
        event["runs"],
        lambda run: F.struct(
            F.get(run, F.lit(0)).try_cast("bigint").alias("first_offset"),
            F.get(run, F.lit(1)).try_cast("bigint").alias("last_offset"),
            F.get(run, F.lit(2)).alias("state"),
            F.get(run, F.lit(3)).try_cast("int").alias("delivery_count"),
        ),
    )
    columns = {
        **{name: frame[name] for name in (*_FRAME_FIELDS, "group")},
        **{name: event[name] for name in event_fields()},
        "sequence": frame["sequence"] + F.col("one.at"),
        "records": event["last_offset"] - event["first_offset"] + 1,
        "runs": run,
        "date": F.to_date(F.timestamp_millis(event["time_ms"])),
    }
    return rows.select([columns[field.name].cast(field.dataType).alias(field.name) for field in EVENTS_SCHEMA])


def event_fields() -> Sequence[str]:
    """The columns that equal fields of an event."""
    return [
        "event",
        "time_ms",
        "first_offset",
        "last_offset",
        "delivery_count",
        "member_id",
        "append_time_ms",
        "lock_deadline_ms",
        "start_offset",
        "reason",
        "dead_letter_topic",
        "client_id",
    ]


def _quarantine(checked: DataFrame) -> DataFrame:
    broken = checked.where(F.col("problem").isNotNull()).withColumns(
        {"date": F.to_date("timestamp"), "timestamp_ms": F.unix_millis("timestamp")}
    )
    return broken.select([F.col(field.name).cast(field.dataType) for field in QUARANTINE_SCHEMA])
