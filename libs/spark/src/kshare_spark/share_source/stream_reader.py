"""`spark.readStream.format("kshare")`: batches of a share group's records, accepted when Spark has committed them.

Spark keeps one reader in a separate Python process for the life of a query; other copies only plan or read, and join no
group. A batch is done at the first of these:
- `latestOffset(start, …)`: Spark plans what comes after `start`, so the batch that ends there is in its commit log;
- `commit(end)`, which Spark calls right after that;
- the listener in the user's process, for the last batch and for long triggers.

When the query ends, Spark kills this process with SIGTERM. The message that its last batch is done may still be in
flight: the process waits for it for GRACE_S at most, then releases the unfinished records and leaves the group.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kshare_spark.share_source.cluster import Cluster
from kshare_spark.share_source.control import ControlServer
from kshare_spark.share_source.keeper import Keeper
from kshare_spark.share_source.offset import ShareOffset
from kshare_spark.share_source.options import ReadOptions
from kshare_spark.share_source.reading import RunsPartition, read_runs
from kshare_spark.share_source.runs import split

logger = logging.getLogger(__name__)

GRACE_S = 3.0


class Progress:
    """The batches of one running source; used by Spark's thread and by the control socket's."""

    def __init__(self, options: ReadOptions) -> None:
        self.session = uuid.uuid4().hex
        self._options = options
        self._keeper = Keeper(options)
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)
        self._open: ShareOffset | None = None
        """The batch that Spark has and that is not done."""
        self._finished = -1
        self._terminated = False
        self._ends: dict[tuple[str, int], int] | None = None
        self._control = _control_server(self.session, self._told)

    def stop_at(self, ends: dict[tuple[str, int], int]) -> None:
        """From now on the source delivers only records below these offsets."""
        self._ends = ends

    def next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset of the next batch; `start`, which is done, if there is nothing to read."""
        before = ShareOffset.from_json(start)
        self.finish(before)
        with self._guard:
            if self._open is not None and self._open.batch == before.batch + 1:
                return self._open.to_json()
        records, size = self._limits(limit)
        runs, deadline_ms = self._keeper.acquire(records, size, ends=self._ends)
        if not runs:
            return start
        offset = ShareOffset(before.batch + 1, self.session, deadline_ms, runs, self._keeper.unaccepted())
        with self._guard:
            self._open = offset
        return offset.to_json()

    def finish(self, offset: ShareOffset) -> None:
        """Marks this batch, and all before it, as done."""
        with self._guard:
            if offset.batch <= self._finished:
                return
            if self._finished < 0:
                self._keeper.remember(offset.unaccepted)
            self._finished = offset.batch
            self._keeper.finished(offset.runs)
            if self._open is not None and self._open.batch <= offset.batch:
                self._open = None
            self._settled.notify_all()

    def close(self, grace_s: float) -> None:
        """Waits for the message about an open batch, then releases held records."""
        with self._settled:
            self._settled.wait_for(lambda: self._open is None or self._terminated, grace_s)
        if self._control is not None:
            self._control.close()
        self._keeper.close()

    def _told(self, message: dict[str, Any]) -> None:
        with self._guard:
            offset = self._open
        if offset is not None and message.get("finished") == offset.batch:
            self.finish(offset)
        if message.get("terminated"):
            with self._guard:
                self._terminated = True
                self._settled.notify_all()

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.max_bytes
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None


class ShareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's docstring. Picklable until the first request for offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._progress: Progress | None = None
        self._is_stopping = False

    def initialOffset(self) -> dict[str, Any]:
        return ShareOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        cluster = Cluster(self._options.client)
        try:
            self._started().stop_at(cluster.end_offsets(self._options.topics))
        finally:
            cluster.close()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._started().next(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offset = ShareOffset.from_json(end)
        return [RunsPartition(runs, offset.lock_deadline_ms) for runs in split(offset.runs, self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RunsPartition)
        return read_runs(self._options, partition.runs, partition.lock_deadline_ms)

    def commit(self, end: dict[str, Any]) -> None:
        if self._progress is not None:
            self._progress.finish(ShareOffset.from_json(end))

    def stop(self) -> None:
        self._is_stopping = True
        if self._progress is not None:
            self._progress.close(GRACE_S)
            self._progress = None

    def _started(self) -> Progress:
        if self._progress is None:
            self._outlive_sigterm()
            self._progress = Progress(self._options)
        return self._progress

    def _outlive_sigterm(self) -> None:
        """Makes SIGTERM end the loop of calls, so that `stop` is called and runs to its end."""

        def ended(number: int, frame: FrameType | None) -> None:
            if not self._is_stopping:
                self._is_stopping = True
                raise SystemExit(0)

        with contextlib.suppress(ValueError):  # not in the main thread: a test, or another Spark
            signal.signal(signal.SIGTERM, ended)


def _control_server(session: str, handle: Any) -> ControlServer | None:
    try:
        return ControlServer(session, handle)
    except OSError as error:
        logger.warning("batches are accepted when Spark plans the next one only: %s", error)
        return None
