"""`spark.read.format("kshare")`: what a share group has for us now.

Two ways:
- plain: `numPartitions` tasks (1 without the option), each a member of the group, read until nothing is there or
  maxRecordsPerTrigger is reached. `acknowledge=never`, the default, releases everything at the end, so nothing is lost
  and each look counts as a delivery. `acknowledge=onRead` accepts what the task has handed to Spark: whatever fails
  after that does not bring it back. Every action on the DataFrame acquires anew.
- `kshare_spark.share_source.taking.take`: acquired in the user's process and accepted when its block ends well. This
  is the one for jobs that must not lose anything; it sets the option `acquired`.
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
    """See the module's text; `acquired` is the option's JSON, an offset of `offset`."""

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
