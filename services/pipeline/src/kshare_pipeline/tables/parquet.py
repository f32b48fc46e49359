"""A table as a folder of Parquet files that any tool reads, partitioned by day (`date=…`) and perhaps more.

Spark writes the files of a batch into a staging folder. When all are durable, this process moves them into the table,
one by one. So a JVM that outlives a killed process cannot publish anything. A crash between two moves leaves a part of
the batch; the repeated batch finds its rows by their key (`add`) and does not add them again.

Joining the files of a day uses a journal in the table's folder (`_joining.json`, which readers ignore). It lists the
old files and their replacements. The next start completes an interrupted join, and after an error of the disk the next
operation on the table does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kshare_pipeline.tables.layout import days_of, sync_file, sync_folder

_JOURNAL = "_joining.json"
DATE = "date"


class Added(NamedTuple):
    """The result of adding rows: how many were given, how many were new, and their days, oldest first."""

    given: int
    added: int
    days: tuple[date, ...]


class Joining(NamedTuple):
    """The replaced files of a day and their replacements."""

    old: list[Path]
    new: list[Path]


class ParquetTable:
    """`key` identifies a row among those of the same `partition_by` values and `time_column`."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        staging: Path,
        schema: StructType,
        *,
        key: Sequence[str],
        partition_by: Sequence[str],
        time_column: str,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._staging = staging / folder.name
        self._schema = schema
        self._key = list(key)
        self._partition_by = list(partition_by)
        self._time_column = time_column
        folder.mkdir(parents=True, exist_ok=True)
        self._finish_joining()

    def days(self) -> list[date]:
        return days_of(self._folder)

    def read(self, days: Sequence[date]) -> DataFrame:
        """The rows of these days, possibly none; only their folders are read."""
        self._complete_joining()
        folders = [self._day(day) for day in sorted(days)]
        present = [str(folder) for folder in folders if folder.exists()]
        if not present:
            return self._spark.createDataFrame([], self._schema)
        return self._spark.read.schema(self._schema).option("basePath", str(self._folder)).parquet(*present)

    def add(self, rows: DataFrame, batch_id: int) -> Added:
        """Adds the new ones of `rows` durably, each once."""
        time = F.col(self._time_column)
        per_day = rows.groupBy(DATE).agg(F.count("*"), F.min(time), F.max(time)).orderBy(DATE).collect()
        if not per_day:
            return Added(0, 0, ())
        days = tuple(row[0] for row in per_day)
        existing = self.read(days).where(time.between(min(row[2] for row in per_day), max(row[3] for row in per_day)))
        new = rows.dropDuplicates(self._key).join(existing.select(self._key), self._key, "left_anti")
        columns = [field.name for field in self._schema]
        count = self._publish(self._stage(new.select(columns)), f"batch-{batch_id:012d}")
        return Added(given=sum(row[1] for row in per_day), added=count, days=days)

    def _stage(self, rows: DataFrame) -> list[Path]:
        """Durable files in the staging folder, one for each partition."""
        shutil.rmtree(self._staging, ignore_errors=True)
        order = [*self._partition_by, *[name for name in self._key if name not in self._partition_by]]
        (
            rows.repartition(*self._partition_by)
            .sortWithinPartitions(*order)
            .write.partitionBy(*self._partition_by)
            .parquet(str(self._staging))
        )
        files = sorted(self._staging.rglob("*.parquet"))
        for file in files:
            sync_file(file)
        return files

    def _publish(self, files: Sequence[Path], prefix: str) -> int:
        count = 0
        folders: dict[Path, None] = {}
        for file in files:
            count += parquet.read_metadata(file).num_rows
            target = self._target(file, prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
            folders.update({parent: None for parent in [target.parent, *target.parent.parents]})
        for folder in folders:
            if folder.is_relative_to(self._folder):
                sync_folder(folder)
        shutil.rmtree(self._staging, ignore_errors=True)
        return count

    def _target(self, staged: Path, prefix: str) -> Path:
        place = staged.relative_to(self._staging).parent
        return self._folder / place / f"{prefix}-{staged.name}"

    def _day(self, day: date) -> Path:
        return self._folder / f"{DATE}={day.isoformat()}"

    def remove_days(self, before: date) -> list[date]:
        """Removes the days before `before`; returns them."""
        self._complete_joining()
        removed = [day for day in self.days() if day < before]
        for day in removed:
            shutil.rmtree(self._day(day))
        return removed

    def join_files(self, day: date, most: int) -> int:
        """Joins the day's files, one per partition, if a partition has more than `most`; returns the reduction."""
        self._complete_joining()
        folders: dict[Path, list[Path]] = {}
        for file in sorted(self._day(day).rglob("*.parquet")):
            folders.setdefault(file.parent, []).append(file)
        if max(map(len, folders.values()), default=0) <= most:
            return 0
        joining = self.begin_joining(day)
        self._finish_joining()
        return len(joining.old) - len(joining.new)

    def begin_joining(self, day: date) -> Joining:
        """Writes the joined files of a day, hidden, and then the journal, which commits the join."""
        self._complete_joining()  # its journal would be overwritten
        old = sorted(self._day(day).rglob("*.parquet"))
        staged = self._stage(self.read([day]))
        new = [self._target(file, "joined") for file in staged]
        for file, target in zip(staged, new, strict=True):
            file.replace(_hidden(target))
            sync_folder(target.parent)
        names = {"add": new, "remove": old}
        text = json.dumps(
            {name: [str(path.relative_to(self._folder)) for path in paths] for name, paths in names.items()}
        )
        draft = self._folder / f"{_JOURNAL}.new"
        draft.write_text(text, encoding="utf-8")
        sync_file(draft)
        draft.replace(self._folder / _JOURNAL)
        sync_folder(self._folder)
        return Joining(old, new)

    def _complete_joining(self) -> None:
        """Completes a join that an error of the disk has interrupted; until then some rows are hidden."""
        if (self._folder / _JOURNAL).exists():
            self._finish_joining()

    def _finish_joining(self) -> None:
        """Completes the join of the journal, if there is one; removes hidden files that are not in a journal."""
        journal = self._folder / _JOURNAL
        if journal.exists():
            names = json.loads(journal.read_text(encoding="utf-8"))
            for name in names["remove"]:
                (self._folder / name).unlink(missing_ok=True)
            for name in names["add"]:
                target = self._folder / name
                if _hidden(target).exists():
                    _hidden(target).replace(target)
                sync_folder(target.parent)
            journal.unlink()
            sync_folder(self._folder)
        for path in self._folder.rglob(".joined-*"):
            path.unlink()


def _hidden(path: Path) -> Path:
    """A name that begins with a dot, which readers ignore."""
    return path.with_name(f".{path.name}")
