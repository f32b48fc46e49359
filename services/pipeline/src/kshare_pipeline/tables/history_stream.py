"""The streaming query from the history topic into the tables.

One run (Spark's trigger AvailableNow) reads all records of the topic in batches, and ends. The checkpoint has a batch's
offsets: after a crash it is repeated with the same records, and rows that it had already published are found by their
key. So each event is in the table once.

One process writes into the data folder, and all its writes are sequential (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kshare_pipeline.metrics import ReadCounts
from kshare_pipeline.tables.formats import Table
from kshare_pipeline.tables.layout import Layout, TouchedDays
from kshare_pipeline.tables.parse import parse_history

LOG_FORMAT = "kshare-log"


class HistoryIngest:
    """The processing of a batch of the topic's records, for `DataStreamWriter.foreachBatch`."""

    def __init__(self, events: Table, quarantine: Table, touched: TouchedDays) -> None:
        self.counts = ReadCounts()
        self._events = events
        self._quarantine = quarantine
        self._touched = touched

    def batch(self, records: DataFrame, batch_id: int) -> None:
        """Adds the new rows of the batch to the tables; idempotent."""
        records = records.persist()
        parsed = parse_history(records)
        events = parsed.events.persist()
        try:
            count = records.count()
            quarantined = self._quarantine.add(parsed.quarantine, batch_id)
            added = self._events.add(events, batch_id)
            self._touched.add(added.days, batch_id)
        finally:
            events.unpersist()
            records.unpersist()
        counts = self.counts
        counts.batches += 1
        counts.records += count
        counts.events += added.added
        counts.repeated += added.given - added.added
        counts.quarantined += quarantined.added


def history_records(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The stream of the topic's records; `options` are those of the format kshare-log."""
    return spark.readStream.format(LOG_FORMAT).options(**options).load()


class HistoryStream:
    """The query over a stream of records; `run` reads all that is new."""

    def __init__(self, records: Callable[[], DataFrame], ingest: HistoryIngest, layout: Layout) -> None:
        self._records = records
        self._ingest = ingest
        self._checkpoint = str(layout.checkpoint)
        self._query: StreamingQuery | None = None
        self._stopped = False

    def run_available(self) -> list[Mapping[str, Any]]:
        """Reads all records; returns Spark's progress of the batches. Raises Spark's error of a failed one."""
        self._query = (
            self._records()
            .writeStream.foreachBatch(self._ingest.batch)
            .option("checkpointLocation", self._checkpoint)
            .queryName("delivery-history")
            .trigger(availableNow=True)
            .start()
        )
        if self._stopped:
            self._query.stop()
        try:
            self._query.awaitTermination()
            return [dict(progress) for progress in self._query.recentProgress]
        finally:
            self._query = None

    def stop(self) -> None:
        """Ends the current run from another thread; the next process repeats its batch."""
        self._stopped = True
        query = self._query
        if query is not None:
            query.stop()
