"""The service's work, sequential on one thread, because Spark's calls block.

A run reads the topic, computes marts and the report when they are due, and does the upkeep of the tables. Nothing runs
in parallel, so no reader of the process sees a file that is being replaced. The next run retries a failure: the
checkpoint, the marks of changed days and the tables' journals have the remaining work.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
from datetime import UTC, date, datetime, timedelta
from typing import IO

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from kshare_pipeline.marts.refresh import MartRefresh
from kshare_pipeline.metrics import ReadCounts, ServiceCounts
from kshare_pipeline.report.command import write_report
from kshare_pipeline.report.figures import NoMarts
from kshare_pipeline.settings import PipelineProcessSettings
from kshare_pipeline.tables.checkpoint import lag_offsets
from kshare_pipeline.tables.formats import Table, events_table, quarantine_table
from kshare_pipeline.tables.history_stream import HistoryIngest, HistoryStream, history_records
from kshare_pipeline.tables.layout import Layout, TouchedDays
from kshare_pipeline.tables.upkeep import keep_up
from kshare_spark.log_source import LogDataSource
from kshare_spark.session import spark_session

UPKEEP_INTERVAL_MS = 30 * 60_000
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


class FolderInUse(OSError):
    """Another process uses the data folder."""


class SparkNotStarted(OSError):
    """Spark's Java process ended during its start; its output is on standard error."""


class PipelineWorker:
    """The worker: call `open`, `run` repeatedly, `close`; `interrupt` from another thread."""

    def __init__(self, settings: PipelineProcessSettings) -> None:
        self.service = ServiceCounts()
        self._settings = settings
        self._layout = Layout(settings.data_dir)
        self._options = settings.source_options()
        self._lock: IO[str] | None = None
        self._spark: SparkSession | None = None
        self._ingest: HistoryIngest | None = None
        self._stream: HistoryStream | None = None
        self._refresh: MartRefresh | None = None
        self._tables: list[Table] = []
        self._marts_due_ms = 0
        self._upkeep_due_ms = 0
        self._interrupted = False

    def counts(self) -> ReadCounts:
        return self._ingest.counts if self._ingest is not None else ReadCounts()

    def open(self) -> None:
        """Locks the folder and starts Spark; FolderInUse, SparkNotStarted, or Spark's error."""
        layout = self._layout
        layout.folder.mkdir(parents=True, exist_ok=True)
        self._lock = layout.lock.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise FolderInUse(f"another process works on {layout.folder} (it holds {layout.lock})") from None
        layout.prepare()
        spark = self._spark = self._start_spark()
        events, quarantine = events_table(spark, layout), quarantine_table(spark, layout)
        touched = TouchedDays(layout.touched)
        self._tables = [events, quarantine]
        self._ingest = HistoryIngest(events, quarantine, touched)
        self._stream = HistoryStream(lambda: history_records(spark, self._options), self._ingest, layout)
        self._refresh = MartRefresh(spark, layout, events, touched)

    def _start_spark(self) -> SparkSession:
        logging.getLogger("py4j").setLevel(logging.WARNING)
        temporary = self._layout.temporary
        given = self._settings.spark_options()
        # Spark walks through long expressions, and with regular expressions through their code, by recursion. A report
        # of a crash would otherwise go to the working directory, where a container loses it.
        java = f"-Xss4m -XX:+ErrorFileToStderr -Djava.io.tmpdir={temporary} {given.pop(JAVA_OPTIONS, '')}".strip()
        options = {
            "spark.local.dir": str(temporary),
            JAVA_OPTIONS: java,
            "spark.sql.warehouse.dir": str(temporary / "warehouse"),
            "spark.ui.showConsoleProgress": "false",
            **given,
            "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        }
        try:
            spark = spark_session("kshare pipeline", options=options)
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            reason = f"Spark's Java process ended at its start; what it printed is above (java options: {java})"
            raise SparkNotStarted(reason) from None
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(LogDataSource)
        return spark

    def run(self, now_ms: int) -> None:
        """Executes one run; raises its failure."""
        assert self._stream is not None and self._refresh is not None
        self._stream.run_available()
        self.service.lag_offsets = lag_offsets(self._options, self._settings.history_topic, self._layout.checkpoint)
        today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        if now_ms >= self._marts_due_ms and not self._interrupted:
            self._refresh_marts(self._refresh, today, now_ms)
            self._marts_due_ms = now_ms + self._settings.marts_interval_ms
        if now_ms >= self._upkeep_due_ms and not self._interrupted:
            self._keep_up(self._refresh, today)
            self._upkeep_due_ms = now_ms + UPKEEP_INTERVAL_MS

    def _refresh_marts(self, refresh: MartRefresh, today: date, now_ms: int) -> None:
        days = refresh.run()
        self.service.mart_days += len(days)
        self.service.marts_last_success_ms = now_ms
        if days:
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            first = today - timedelta(days=self._settings.report_days - 1)
            with contextlib.suppress(NoMarts):  # only days before the report's were changed
                write_report(self._layout.folder, self._layout.report, now=now, first=first)

    def _keep_up(self, refresh: MartRefresh, today: date) -> None:
        for table in self._tables:
            keep_up(table, today, self._settings.retention_days)
        refresh.remove_days(today - timedelta(days=self._settings.marts_retention_days - 1))

    def has_spark_ended(self) -> bool:
        """Whether Spark's Java process has ended or its context was stopped: then every further run fails, and
        `interrupt` and `close` have no Spark to stop."""
        if self._spark is None:
            return True
        try:
            _ = self._spark.sparkContext.defaultParallelism  # a question to the Java process
        except Exception:  # its class depends on how the process ended
            self._spark = None
        return self._spark is None

    def interrupt(self) -> None:
        """Ends the current run, which fails; the next one repeats its unfinished work."""
        self._interrupted = True
        if self._stream is not None:
            self._stream.stop()
        if self._spark is not None:
            self._spark.sparkContext.setLogLevel("OFF")  # errors of interrupted work are expected
            self._spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()
        if self._lock is not None:
            self._lock.close()
