"""A streaming query over a share group, in a process that a test kills: `python -m support.pipeline.share_query JSON`.

Each batch is written to SQLite with (topic, partition, offset) as key, so a record that comes twice is there once; and
noted in a second table as it came. After the write of batch `hold_batch` the query waits in the batch until a file
`go` is there, and says so by the file `holding`. With `hold_task` the first task of this life writes the pid of its
executor's JVM into the file `task` and waits to be killed with it; `master` has to be a cluster whose executors are not
the driver then. The query ends well when a file `stop` is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from support.pipeline.spark import shared_spark

TABLES = """
CREATE TABLE IF NOT EXISTS sink (topic, at_partition, at_offset, value, PRIMARY KEY (topic, at_partition, at_offset));
CREATE TABLE IF NOT EXISTS seen (life, batch, topic, at_partition, at_offset, delivery_count);
"""
POLL_S = 0.05
HELD_TASK_S = 120.0


@dataclass(frozen=True)
class QuerySettings:
    """What a life of the query needs; `folder` has its checkpoint, its database and its signal files."""

    folder: str
    life: str
    options: dict[str, str]
    hold_batch: int = -1
    hold_task: bool = False
    master: str = "local[2]"

    @property
    def database(self) -> Path:
        return Path(self.folder) / "sink.sqlite"

    def file(self, name: str) -> Path:
        return Path(self.folder) / f"{name}-{self.life}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def write(settings: QuerySettings, frame: DataFrame, batch: int) -> None:
    """The idempotent sink: one transaction for a batch."""
    found = [
        (row.topic, row.partition, row.offset, row.value.decode(), row.delivery_count)
        for row in frame.select("topic", "partition", "offset", "value", "delivery_count").collect()
    ]
    with sqlite3.connect(settings.database) as database:
        database.executemany("INSERT OR IGNORE INTO sink VALUES (?, ?, ?, ?)", [row[:4] for row in found])
        noted = [(settings.life, batch, *row[:3], row[4]) for row in found]
        database.executemany("INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?)", noted)
    database.close()
    if batch == settings.hold_batch:
        settings.file("holding").touch()
        while not settings.file("go").exists():
            time.sleep(POLL_S)


def executor_pid() -> int:
    """Of a Python worker: it is forked by a daemon, which the executor has started."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


def until_killed(settings: QuerySettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does with its rows: hands them on, but the first of all waits for its end when it has some."""
    for batch in batches:
        if settings.hold_task:
            with contextlib.suppress(FileExistsError), settings.file("task").open("x") as file:
                file.write(f"{executor_pid()}\n")
                file.flush()
                time.sleep(HELD_TASK_S)
        yield batch


def main(arguments: str) -> None:
    settings = QuerySettings(**json.loads(arguments))
    database = sqlite3.connect(settings.database)
    database.executescript(TABLES)
    database.close()
    spark = shared_spark(master=settings.master)
    source = spark.readStream.format("kshare").options(**settings.options).load()
    frame = source.mapInArrow(partial(until_killed, settings), source.schema)
    writer = frame.writeStream.foreachBatch(lambda batch, number: write(settings, batch, number))
    query = writer.option("checkpointLocation", str(Path(settings.folder) / "checkpoint")).start()
    while query.isActive and not settings.file("stop").exists():
        time.sleep(POLL_S)
    if not query.isActive:
        raise RuntimeError(f"the query ended: {query.exception()}")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
