"""The work of `kshare audit`: reads a stretch of history, audits it, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kshare.audit.direct import BadHistory
from kshare.audit.job import AuditResult, DeliveryCountLimits, audit_table, collect
from kshare.audit.sources import Stretch, check_topic, from_lines, from_tables, from_topic
from kshare_spark.session import spark_session

SHOWN_FINDINGS = 100
QUIET = {"spark.ui.showConsoleProgress": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Exactly one of `tables`, `lines` and `bootstrap` is given: the history's source (see `sources`)."""

    tables: Path | None = None
    lines: Path | None = None
    bootstrap: str | None = None
    kafka_properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the client that reads from `bootstrap`."""
    stretch: Stretch = field(default_factory=Stretch)
    limits: DeliveryCountLimits = field(default_factory=DeliveryCountLimits)
    output: Path | None = None
    """A folder for Parquet files with all findings and a summary of each share-partition (`job.RESULT_SCHEMA`)."""
    master: str = "local[*]"
    spark_options: Mapping[str, str] = field(default_factory=dict)
    show: int = SHOWN_FINDINGS


def run_audit(request: AuditRequest, write_line: Callable[[str], None]) -> bool:
    """Returns whether the history has no fault; BadHistory if it cannot be read."""
    if request.bootstrap is not None:
        check_topic(request.bootstrap, request.kafka_properties)
    spark = spark_session("kshare audit", master=request.master, options={**QUIET, **request.spark_options})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        results = audit_table(request.stretch.of(_events(spark, request)), request.limits)
        if request.output is not None:
            results.write.mode("errorifexists").parquet(str(request.output))
            results = spark.read.parquet(str(request.output))
        result = collect(results, show=request.show)
    except PySparkException as problem:
        raise BadHistory(f"Spark could not read the history: {problem}") from problem
    if not result.totals.share_partitions:
        raise BadHistory("the history has no events there: nothing can be proved")
    for line in report_lines(result):
        write_line(line)
    return not result.totals.numbers.get("faults", 0)


def _events(spark: SparkSession, request: AuditRequest) -> DataFrame:
    if request.tables is not None:
        return from_tables(spark, request.tables)
    if request.lines is not None:
        return from_lines(spark, request.lines)
    if request.bootstrap is not None:
        return from_topic(spark, request.bootstrap, request.kafka_properties)
    raise BadHistory("nothing says where the history is")


def report_lines(result: AuditResult) -> Iterable[str]:
    """Prints the findings, the outcomes of all offsets, and the verdict."""
    totals = result.totals
    faults, unproven = totals.numbers.get("faults", 0), totals.numbers.get("unproven", 0)
    for findings, count in ((result.unproven, unproven), (result.faults, faults)):
        for finding in findings:
            yield str(finding)
        if count > len(findings):
            yield f"… and {count - len(findings)} more of these"
    yield f"share-partitions: {totals.share_partitions}"
    for name in ("events", "duplicates", "deliveries"):
        yield f"{name}: {totals.numbers.get(name, 0)}"
    yield f"offsets: {sum(totals.offsets.values())}"
    for outcome, count in totals.offsets.items():
        yield f"  {outcome}: {count}"
    yield f"unproven stretches: {unproven}"
    yield f"faults: {faults}"
    if faults:
        yield "the rules were broken"
    elif unproven:
        yield "no rule was broken, as far as the history tells"
    else:
        yield "every offset is accounted for, and no rule was broken"
