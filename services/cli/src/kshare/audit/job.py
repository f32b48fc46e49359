"""The audit with Spark: events are sorted by share-partition, and each task audits one share-partition after the other.

A task holds one `SharePartitionAuditor` and one batch of rows at a time, and Spark's sort spills to disk, so memory
does not depend on the length of the history. Its rows are findings and one summary for each share-partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kshare.audit.events import HistoryEvent, SharePartitionId
from kshare.audit.findings import Finding, Rule, Severity, SharePartitionAudit
from kshare.audit.share_partition import DELIVERY_COUNT_LIMIT, SharePartitionAuditor
from kshare_core.delivery_history import DurableRun

if TYPE_CHECKING:
    import pyarrow as pa

KEY = ("group", "topic_id", "partition")
ORDER = ("leader_epoch", "incarnation", "sequence")
EVENT_COLUMNS = (
    *ORDER,
    "leader",
    "state_epoch",
    "event",
    "time_ms",
    "first_offset",
    "last_offset",
    "delivery_count",
    "member_id",
    "start_offset",
    "reason",
    "runs",
)
"""The fields of `HistoryEvent`, in their order."""
RESULT_BATCH_ROWS = 1_000

RESULT_SCHEMA = StructType(
    [
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("severity", StringType()),
        StructField("rule", StringType()),
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("text", StringType()),
        StructField("events", ArrayType(StringType())),
        StructField("numbers", MapType(StringType(), LongType())),
        StructField("offsets", MapType(StringType(), LongType())),
    ]
)
"""A finding has a severity; a summary has `numbers` and `offsets` (by outcome) instead, and the stretch's offsets."""


@dataclass(frozen=True, slots=True)
class DeliveryCountLimits:
    """The highest share.delivery.count.limit, by group."""

    limit: int = DELIVERY_COUNT_LIMIT
    of_groups: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, group: str) -> int:
        return self.of_groups.get(group, self.limit)


class Totals(NamedTuple):
    """Sums over all share-partitions; `offsets` by outcome."""

    share_partitions: int
    numbers: Mapping[str, int]
    offsets: Mapping[str, int]


class AuditResult(NamedTuple):
    """The result of the audit; `faults` and `unproven` have the first findings, up to the limit of the request."""

    totals: Totals
    faults: list[Finding]
    unproven: list[Finding]


def audit_table(events: DataFrame, limits: DeliveryCountLimits) -> DataFrame:
    """Findings and summaries in the columns of RESULT_SCHEMA; `events` has the columns of the `events` table."""
    columns = list(dict.fromkeys((*KEY, "topic", *EVENT_COLUMNS)))
    arranged = events.select(*columns).repartition(*KEY).sortWithinPartitions(*KEY, *ORDER)
    return arranged.mapInArrow(_Auditing(limits), RESULT_SCHEMA)


def collect(results: DataFrame, *, show: int) -> AuditResult:
    """Runs the audit; at most `show` findings of each severity come to the driver, faults by place."""
    kept = results.persist(StorageLevel.DISK_ONLY)
    try:
        return AuditResult(
            _totals(kept.where(F.col("severity").isNull())),
            _first(kept, Severity.FAULT, show),
            _first(kept, Severity.UNPROVEN, show),
        )
    finally:
        kept.unpersist()


def _totals(summaries: DataFrame) -> Totals:
    sums: dict[str, dict[str, int]] = {"numbers": {}, "offsets": {}}
    named = F.array(*(F.struct(F.lit(name).alias("name"), F.col(name).alias("counts")) for name in sums))
    each = summaries.select(F.explode(named).alias("one")).select(
        "one.name", F.explode("one.counts").alias("of", "count")
    )
    for row in sorted(each.groupBy("name", "of").agg(F.sum("count")).collect()):
        sums[row[0]][row[1]] = row[2]
    return Totals(sums["numbers"].pop("share_partitions", 0), sums["numbers"], sums["offsets"])


def _first(results: DataFrame, severity: Severity, show: int) -> list[Finding]:
    found = results.where(F.col("severity") == severity).orderBy("group", "topic", "partition", "first_offset", "rule")
    return [
        Finding(
            severity,
            Rule(row["rule"]),
            SharePartitionId(row["group"], row["topic_id"], row["partition"], row["topic"]),
            row["first_offset"],
            row["last_offset"],
            row["text"],
            tuple(row["events"]),
        )
        for row in found.limit(show).collect()
    ]


class _Auditing:
    """The function of a task, which Spark sends to its Python workers."""

    def __init__(self, limits: DeliveryCountLimits) -> None:
        self._limits = limits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = to_arrow_schema(RESULT_SCHEMA)
        waiting: list[dict[str, Any]] = []
        for audit in audits_of_rows(_rows(batches), self._limits):
            waiting.extend(_result_rows(audit))
            if len(waiting) >= RESULT_BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(waiting, schema)
                waiting = []
        if waiting:
            yield pa.RecordBatch.from_pylist(waiting, schema)


class EventRow(NamedTuple):
    share_partition: SharePartitionId
    event: HistoryEvent


def audits_of_rows(rows: Iterable[EventRow], limit_of: Callable[[str], int]) -> Iterator[SharePartitionAudit]:
    """One audit for each share-partition; the rows of each are together and in order."""
    current: SharePartitionId | None = None
    auditor: SharePartitionAuditor | None = None
    for row in rows:
        if auditor is None or current is None or row.share_partition[:3] != current[:3]:
            if auditor is not None:
                yield auditor.finish()
            current = row.share_partition
            auditor = SharePartitionAuditor(current, delivery_count_limit=limit_of(current.group))
        auditor.apply(row.event)
    if auditor is not None:
        yield auditor.finish()


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[EventRow]:
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        columns["runs"] = [None if runs is None else tuple(map(_run, runs)) for runs in columns["runs"]]
        events = map(HistoryEvent, *(columns[name] for name in EVENT_COLUMNS))
        places = map(SharePartitionId, *(columns[name] for name in (*KEY, "topic")))
        yield from map(EventRow, places, events)


def _run(run: Mapping[str, Any]) -> DurableRun:
    """The event of a row. An unreadable field gets a value that no run has, so the audit reports it as malformed."""
    first, last, count = run["first_offset"], run["last_offset"], run["delivery_count"]
    if first is None or last is None or count is None:
        return DurableRun(-1, -1, str(run["state"]), 0)
    return DurableRun(first, last, str(run["state"]), count)


def _result_rows(audit: SharePartitionAudit) -> Iterator[dict[str, Any]]:
    group, topic_id, partition, topic = audit.share_partition
    place = {"group": group, "topic": topic, "topic_id": topic_id, "partition": partition}
    for finding in audit.findings:
        yield {
            **place,
            "severity": str(finding.severity),
            "rule": str(finding.rule),
            "first_offset": finding.first_offset,
            "last_offset": finding.last_offset,
            "text": finding.text,
            "events": list(finding.events),
        }
    yield {
        **place,
        "first_offset": audit.first_offset,
        "last_offset": audit.end_offset - 1,
        "numbers": {"share_partitions": 1, **audit.numbers()},
        "offsets": {str(outcome): count for outcome, count in audit.offsets.items()},
    }
