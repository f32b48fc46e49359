"""`spark.read.format("kshare")`: the records that a share group can deliver now.

There are two modes:
- plain: `numPartitions` tasks (default 1), each a member of the group, read until no records are left or
  maxRecordsPerTrigger is reached. `acknowledge=never`, the default, releases all records at the end: none is lost, and
  each read counts as a delivery. `acknowledge=onRead` accepts records once the task has passed them to Spark: a later
  failure loses them. Every action on the DataFrame acquires again.
- `kshare_spark.share_source.taking.take`: the user's process acquires the records and accepts them when its block
  succeeds. Use it for jobs that must not lose records. It sets the option `acquired`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kshare_spark.share_source.keeper import Keeper
from kshare_spark.share_source.offset import ShareOffset
from kshare_spark.share_source.options import ReadOptions
from kshare_spark.share_source.reading import RunsPartition, read_runs
from kshare_spark.share_source.runs import RunMap, split


@dataclass
class MemberPartition(InputPartition):
    """A task that is a member of the group. Spark pickles it."""

    max_records: int | None


class ShareBatchReader(DataSourceReader):
    """See the module's docstring; `acquired` is the option's JSON, an offset of `offset`."""

    def __init__(self, options: ReadOptions, acquired: str | None) -> None:
        self._options = options
        self._acquired = None if acquired is None else ShareOffset.from_json(json.loads(acquired))

    def partitions(self) -> Sequence[InputPartition]:
        offset = self._acquired
        if offset is not None:
            pieces = split(offset.runs, self._options.partitions) or [RunMap()]
            return [RunsPartition(runs, offset.lock_deadline_ms) for runs in pieces]
        tasks = self._options.partitions or 1
        limit = self._options.max_records
        shares = [None if limit is None else limit // tasks + (index < limit % tasks) for index in range(tasks)]
        return [MemberPartition(share) for share in shares if share != 0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RunsPartition):
            return read_runs(self._options, partition.runs, partition.lock_deadline_ms)
        assert isinstance(partition, MemberPartition)
        return self._read_as_member(partition.max_records)

    def _read_as_member(self, left: int | None) -> Iterator[pa.RecordBatch]:
        keeper = Keeper(self._options)
        try:
            while left is None or left > 0:
                runs, deadline_ms = keeper.acquire(left, self._options.max_bytes)
                if not runs:
                    return
                yield from read_runs(self._options, runs, deadline_ms)
                if self._options.accept_on_read:
                    keeper.finished(runs)
                if left is not None:
                    left -= runs.records
        finally:
            keeper.close()
