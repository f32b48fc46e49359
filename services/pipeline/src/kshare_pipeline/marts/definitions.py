"""The marts: tables of figures, one row set for each UTC day. All have the column `date`.

Each is a function of a `Day`, whose docstring defines the figures; times are the leaders' wall times. The names of
columns are a contract with the report and other tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kshare_core.delivery_history import (
    REASON_DELIVERY_COUNT_LIMIT,
    REASON_NOT_DELIVERED,
    REASON_REJECTED,
    EventType,
)
from kshare_pipeline.marts.deliveries import (
    ENDS,
    EVENT_COLUMNS,
    ORDER,
    SHARE_PARTITION,
    SPARK_SCHEMA,
    delivery_batches,
)

MINUTE_MS = 60_000
POISON_REASONS = (REASON_REJECTED, REASON_DELIVERY_COUNT_LIMIT)
NOT_DELIVERED = "not_delivered"
OUTCOMES = (*[str(end) for end in ENDS], NOT_DELIVERED)
"""`released` with the reason not_delivered counts separately: that delivery never reached its member."""


@dataclass(frozen=True, slots=True)
class Day:
    """The input of a day's marts."""

    day: date
    history: DataFrame
    """Rows of `events` of this day and the day before, in which deliveries that end today may have begun."""
    deliveries: DataFrame
    """The deliveries that ended on this day; see `marts.deliveries`."""

    @property
    def events(self) -> DataFrame:
        return self.history.where(F.col("date") == F.lit(self.day))


def day_of(day: date, history: DataFrame) -> Day:
    """`deliveries` is used by several marts, so it should be persisted."""
    ordered = (
        history.select(*EVENT_COLUMNS).repartition(*SHARE_PARTITION).sortWithinPartitions(*SHARE_PARTITION, *ORDER)
    )
    begin_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    end_ms = begin_ms + int(timedelta(days=1).total_seconds() * 1000)
    deliveries = ordered.mapInArrow(delivery_batches, SPARK_SCHEMA)
    return Day(day, history, deliveries.where((F.col("ended_ms") >= begin_ms) & (F.col("ended_ms") < end_ms)))


def _minute(time_ms: str) -> Column:
    return F.timestamp_millis(F.col(time_ms) - F.col(time_ms) % MINUTE_MS)


def _records(condition: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, F.col("records"))), F.lit(0))


def _latency_columns() -> list[Column]:
    latency, processing = "ended_ms - append_time_ms", "ended_ms - acquired_ms"

    def percentile(expression: str, part: float) -> Column:
        return F.expr(f"percentile({expression}, {part}, records)")

    return [
        F.sum("records").alias("records"),
        _records(F.col("append_time_ms").isNull()).alias("records_without_append_time"),
        percentile(latency, 0.5).alias("p50_ms"),
        percentile(latency, 0.9).alias("p90_ms"),
        percentile(latency, 0.99).alias("p99_ms"),
        F.max(F.expr(latency)).alias("max_ms"),
        percentile(processing, 0.5).alias("processing_p50_ms"),
        percentile(processing, 0.99).alias("processing_p99_ms"),
    ]


def append_to_accept(day: Day) -> DataFrame:
    """By group and minute of the acceptance: the time from a record's append until its acceptance.

    The append time of a run is that of its first record. Percentiles are exact (Spark's `percentile`: between two
    values they are interpolated), and only over records whose acquisition is in the history; the others are
    `records_without_append_time`, a part of `records`. `processing_*`: from the last acquisition to the acceptance.
    """
    accepted = day.deliveries.where(F.col("outcome") == str(EventType.ACCEPTED))
    return accepted.groupBy("group", _minute("ended_ms").alias("minute")).agg(*_latency_columns())


def append_to_accept_by_day(day: Day) -> DataFrame:
    """The same over the whole day, by group, as percentiles of minutes cannot be added up."""
    accepted = day.deliveries.where(F.col("outcome") == str(EventType.ACCEPTED))
    return accepted.groupBy("group").agg(*_latency_columns())


def _outcome() -> Column:
    not_delivered = (F.col("outcome") == str(EventType.RELEASED)) & (F.col("reason") == REASON_NOT_DELIVERED)
    return F.when(not_delivered, F.lit(NOT_DELIVERED)).otherwise(F.col("outcome"))


def _acquired_and_ended(day: Day, by: Sequence[str]) -> DataFrame:
    """The acquisitions of the day and the ends of the day: columns `by`, time_ms, records, what."""
    acquired = day.events.where(F.col("event") == str(EventType.ACQUIRED))
    ended = day.deliveries.withColumn("what", _outcome())
    return acquired.select(*by, "time_ms", "records", F.col("event").alias("what")).unionByName(
        ended.select(*by, F.col("ended_ms").alias("time_ms"), "records", "what")
    )


def _record_counts() -> list[Column]:
    names = (str(EventType.ACQUIRED), *OUTCOMES)
    return [_records(F.col("what") == name).alias(f"{name}_records") for name in names]


def redelivery(day: Day) -> DataFrame:
    """By group, topic and delivery count: records acquired with this count, and the ends of these deliveries.

    `accepted_records` with 1 were accepted at their first delivery, with 3 at their third one.
    """
    by = ("group", "topic", "delivery_count")
    return _acquired_and_ended(day, by).groupBy(*by).agg(*_record_counts())


def workers(day: Day) -> DataFrame:
    """Throughput by group, minute and member: the records it acquired in the minute, and the ends of its deliveries."""
    moved = _acquired_and_ended(day, ("group", "member_id")).where(F.col("member_id").isNotNull())
    return moved.groupBy("group", _minute("time_ms").alias("minute"), "member_id").agg(*_record_counts())


def members(day: Day) -> DataFrame:
    """By group and member: its client id, of members that acquired something and have one. Members may share it."""
    named = day.events.where((F.col("event") == str(EventType.ACQUIRED)) & F.col("client_id").isNotNull())
    return named.groupBy("group", "member_id").agg(F.max("client_id").alias("client_id"))


def fairness(day: Day) -> DataFrame:
    """By group and minute, over the members of `workers`, those that acquired something or whose deliveries ended then.

    `fairness` is Jain's index of accepted records, (sum x)^2 / (n sum x^2): 1 where all accepted the same, 1/n where
    one accepted everything; null if none accepted any. `largest_share`: the part that the busiest member accepted.
    """
    accepted = F.col("accepted_records").cast("double")
    total = F.sum(accepted)
    by_minute = workers(day).groupBy("group", "minute")
    return by_minute.agg(
        F.count("*").alias("members"),
        F.sum("accepted_records").alias("accepted_records"),
        F.when(total > 0, total * total / (F.count("*") * F.sum(accepted * accepted))).alias("fairness"),
        F.when(total > 0, F.max(accepted) / total).alias("largest_share"),
    )


def lag(day: Day) -> DataFrame:
    """By share-partition and minute, as of the last relevant event of the minute.

    `start_offset`: all offsets below are done. `delivered_end_offset`: after the last offset that was ever acquired, or
    that the loaded durable state had. `window_records` is the difference: what was delivered at least
    once and is not yet below the start offset. It contains records that are done above a record that is not, and
    nothing that was not delivered yet: where the log ends is not in the history, so it is not the consumer lag
    (`kshare_leader_share_lag_records` is). `oldest_first_delivery_ms` is what a lag is in time: the greatest age that
    a record had in this minute when it was acquired for the first time; null where none was.

    Before the first `loaded` or `start_offset_moved` of two days `start_offset` and `window_records` are null.
    """
    kind = F.col("event")
    loaded, moved, acquired = (
        kind == str(one) for one in (EventType.LOADED, EventType.START_OFFSET_MOVED, EventType.ACQUIRED)
    )
    ends = F.transform("runs", lambda run: run["last_offset"] + 1)
    reached = (
        F.when(loaded, F.greatest(F.col("start_offset"), F.array_max(ends)))
        .when(moved, F.col("start_offset"))
        .otherwise(F.col("last_offset") + 1)
    )
    every = Window.partitionBy(*SHARE_PARTITION).orderBy(*ORDER)
    since_loaded = Window.partitionBy(*SHARE_PARTITION, "loads").orderBy(*ORDER)
    told = (
        day.history.where(loaded | moved | acquired)
        .withColumn("loads", F.sum(F.when(loaded, 1).otherwise(0)).over(every))
        .withColumn("start_offset", F.last("start_offset", ignorenulls=True).over(every))
        .withColumn("delivered_end_offset", F.max(reached).over(since_loaded))
    )
    first_delivery = acquired & (F.col("delivery_count") == 1)
    age = F.when(first_delivery, F.col("time_ms") - F.col("append_time_ms"))
    last = F.struct(*ORDER)
    by_minute = told.where(F.col("date") == F.lit(day.day)).groupBy(
        *SHARE_PARTITION, _minute("time_ms").alias("minute")
    )
    return by_minute.agg(
        F.max_by("start_offset", last).alias("start_offset"),
        F.max_by("delivered_end_offset", last).alias("delivered_end_offset"),
        F.max(age).alias("oldest_first_delivery_ms"),
    ).withColumn("window_records", F.col("delivered_end_offset") - F.col("start_offset"))


def poison_records(day: Day) -> DataFrame:
    """Runs that were archived on the day because a member rejected them or they reached their delivery limit."""
    archived = (F.col("event") == str(EventType.ARCHIVED)) & F.col("reason").isin(*POISON_REASONS)
    return day.events.where(archived).select(
        *SHARE_PARTITION,
        "first_offset",
        "last_offset",
        "records",
        "delivery_count",
        "reason",
        F.timestamp_millis("time_ms").alias("time"),
    )


def dead_letters(day: Day) -> DataFrame:
    """By group, topic, dead-letter topic and reason: records of which a dead letter was stored.

    After a crash a leader may report it again; an offset counts once in a day.
    """
    by = (*SHARE_PARTITION, "dead_letter_topic", "reason")
    before = Window.partitionBy(*by).orderBy("first_offset", "last_offset").rowsBetween(Window.unboundedPreceding, -1)
    counted_to = F.coalesce(F.max("last_offset").over(before), F.lit(-1))
    new = F.col("last_offset") - F.greatest(F.col("first_offset") - 1, counted_to)
    stored = day.events.where(F.col("event") == str(EventType.DEAD_LETTERED))
    counted = stored.withColumn("new_records", F.greatest(new, F.lit(0)))
    return counted.groupBy("group", "topic", "dead_letter_topic", "reason").agg(F.sum("new_records").alias("records"))


def archived(day: Day) -> DataFrame:
    """By group, topic and reason: records that were not accepted and will not be delivered again."""
    found = day.events.where(F.col("event") == str(EventType.ARCHIVED))
    return found.groupBy("group", "topic", "reason").agg(F.sum("records").alias("records"))


def completeness(day: Day) -> DataFrame:
    """By group and topic: events of the day, and the missing ones between them and before the first one.

    An event with a missing number was lost, as leaders do not wait for the history's topic. Nothing is known before a
    leader's first event in two days, so nothing counts as missing there.
    """
    incarnation = ("leader", "incarnation", "group", "topic", "topic_id", "partition")
    previous = F.lag("sequence").over(Window.partitionBy(*incarnation).orderBy("sequence"))
    gaps = day.history.withColumn("missing", F.coalesce(F.col("sequence") - previous - 1, F.lit(0)))
    of_day = gaps.where(F.col("date") == F.lit(day.day))
    return of_day.groupBy("group", "topic").agg(F.count("*").alias("events"), F.sum("missing").alias("missing_events"))


MARTS: dict[str, Callable[[Day], DataFrame]] = {
    "append_to_accept": append_to_accept,
    "append_to_accept_by_day": append_to_accept_by_day,
    "redelivery": redelivery,
    "workers": workers,
    "members": members,
    "fairness": fairness,
    "lag": lag,
    "poison_records": poison_records,
    "dead_letters": dead_letters,
    "archived": archived,
    "completeness": completeness,
}
"""The marts by name, which is also the name of the folder."""
