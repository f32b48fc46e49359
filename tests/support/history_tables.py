"""The pipeline's parts over a folder of records instead of a topic, for tests; see `support.delivery_histories`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kshare_pipeline.marts.refresh import MartRefresh
from kshare_pipeline.tables.formats import events_table, quarantine_table
from kshare_pipeline.tables.history_stream import HistoryIngest, HistoryStream
from kshare_pipeline.tables.layout import Layout, TouchedDays
from support.delivery_histories import KAFKA_COLUMNS


class Pipeline:
    """As a process has it after its start: what the last one left unfinished is finished."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.topic = folder / "topic"
        self.topic.mkdir(parents=True, exist_ok=True)
        self.layout = Layout(folder / "data")
        self.layout.prepare()
        touched = TouchedDays(self.layout.touched)
        self.events = events_table(spark, self.layout)
        self.quarantine = quarantine_table(spark, self.layout)
        self.ingest = HistoryIngest(self.events, self.quarantine, touched)
        self.stream = HistoryStream(self._records, self.ingest, self.layout)
        self.refresh = MartRefresh(spark, self.layout, self.events, touched)

    def _records(self) -> DataFrame:
        """A batch for each file."""
        reader = self.spark.readStream.schema(KAFKA_COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.topic))
