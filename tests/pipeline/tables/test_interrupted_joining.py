"""A join of files that an error of the disk has interrupted is completed by the next operation on the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from kshare_pipeline.tables.parquet import ParquetTable

JOINED, OTHER = date(2026, 11, 20), date(2026, 11, 21)
SCHEMA = StructType([StructField("sequence", LongType())])


def opened(folder: Path) -> ParquetTable:
    """A table whose Spark only knows empty rows."""
    spark = cast(SparkSession, SimpleNamespace(createDataFrame=lambda rows, schema: rows))
    return ParquetTable(
        spark, folder, folder.parent / "staging", SCHEMA, key=["sequence"], partition_by=["date"], time_column="time_ms"
    )


def interrupt(folder: Path) -> None:
    """The journal of a day is written, one of two old files is removed, and the joined file is hidden."""
    day = folder / f"date={JOINED}"
    day.mkdir()
    (day / "batch-2.parquet").write_bytes(b"old")
    (day / ".joined-1.parquet").write_bytes(b"joined")
    names = {"add": ["joined-1.parquet"], "remove": ["batch-1.parquet", "batch-2.parquet"]}
    journal = {name: [f"{day.name}/{file}" for file in files] for name, files in names.items()}
    (folder / "_joining.json").write_text(json.dumps(journal))


@pytest.mark.parametrize(
    "operation",
    [
        lambda table: table.join_files(OTHER, most=1),
        lambda table: table.read([OTHER]),
        lambda table: table.remove_days(JOINED),
    ],
    ids=["join_files", "read", "remove_days"],
)
def test_the_next_operation_completes_it(tmp_path: Path, operation: Callable[[ParquetTable], Any]) -> None:
    folder = tmp_path / "events"
    table = opened(folder)
    interrupt(folder)
    operation(table)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files == {f"date={JOINED}/joined-1.parquet": b"joined"}


def test_a_day_that_is_removed_takes_its_join_along(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    table = opened(folder)
    interrupt(folder)
    assert table.remove_days(OTHER) == [JOINED]
    assert opened(folder).days() == []
