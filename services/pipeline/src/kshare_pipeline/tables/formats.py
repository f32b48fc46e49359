"""The storage of tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from kshare_pipeline.tables.layout import Layout
from kshare_pipeline.tables.parquet import Added, ParquetTable
from kshare_pipeline.tables.parse import EVENT_KEY, EVENTS_SCHEMA, QUARANTINE_KEY, QUARANTINE_SCHEMA


class Table(Protocol):
    """A table in any format."""

    def days(self) -> list[date]:
        """The days in the table, oldest first."""
        ...

    def read(self, days: Sequence[date]) -> DataFrame: ...

    def add(self, rows: DataFrame, batch_id: int) -> Added:
        """Adds the new ones of `rows` durably, each once."""
        ...

    def remove_days(self, before: date) -> list[date]:
        """Removes older days; returns them."""
        ...

    def join_files(self, day: date, most: int) -> int:
        """Joins the small files of a day in partitions with more than `most`; returns how many were removed."""
        ...


def events_table(spark: SparkSession, layout: Layout) -> Table:
    return ParquetTable(
        spark,
        layout.events,
        layout.staging,
        EVENTS_SCHEMA,
        key=EVENT_KEY,
        partition_by=("date", "group"),
        time_column="time_ms",
    )


def quarantine_table(spark: SparkSession, layout: Layout) -> Table:
    return ParquetTable(
        spark,
        layout.quarantine,
        layout.staging,
        QUARANTINE_SCHEMA,
        key=QUARANTINE_KEY,
        partition_by=("date",),
        time_column="timestamp_ms",
    )
