"""The refresh of marts: of days whose events changed, and of the days after them, which look back one day."""

from __future__ import annotations

import shutil
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kshare_pipeline.marts.definitions import MARTS, day_of
from kshare_pipeline.tables.formats import Table
from kshare_pipeline.tables.layout import Layout, TouchedDays, days_of, sync_file, sync_folder

ONE_DAY = timedelta(days=1)


class MartRefresh:
    """Keeps `marts/` consistent with the table "events".

    Times are written as microseconds of UTC (Spark's default is a type that only Spark and Hive have).
    """

    def __init__(self, spark: SparkSession, layout: Layout, events: Table, touched: TouchedDays) -> None:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._layout = layout
        self._events = events
        self._touched = touched

    def run(self) -> list[date]:
        """Recomputes outdated days, the oldest first; returns them."""
        marks = self._touched.marks()
        present = self._events.days()
        days = sorted(day for day in present if day in marks or day - ONE_DAY in marks)
        for day in days:
            self._compute(day)
        for of_day in marks.values():
            TouchedDays.remove(of_day)
        return days

    def _compute(self, day: date) -> None:
        found = day_of(day, self._events.read([day - ONE_DAY, day]))
        found.history.persist()
        found.deliveries.persist()
        try:
            for name, make in MARTS.items():
                self._replace(name, day, make(found))
        finally:
            found.deliveries.unpersist()
            found.history.unpersist()

    def _replace(self, name: str, day: date, rows: DataFrame) -> None:
        """Replaces the file of a day atomically: readers see the former one or this one."""
        staging = self._layout.staging / "mart"
        shutil.rmtree(staging, ignore_errors=True)
        columns = [F.lit(day).alias("date"), *[F.col(column) for column in rows.columns]]
        rows.select(*columns).coalesce(1).write.parquet(str(staging))
        (file,) = staging.glob("*.parquet")
        sync_file(file)
        target = self._layout.mart_file(name, day)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        sync_folder(target.parent)
        shutil.rmtree(staging)

    def remove_days(self, before: date) -> None:
        """Removes the marts of older days."""
        for name in MARTS:
            for day in days_of(self._layout.marts / name):
                if day < before:
                    self._layout.mart_file(name, day).unlink()
