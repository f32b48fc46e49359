"""The logs of an existing cluster that this node leads by the catalog: the kafka engine's `ports.ServedLogs`.

A topic of the catalog is the cluster's topic of that name, and has the id that the catalog expects there. `on_view`
makes a log for every partition that is placed here, and OPENINGS_LIMIT at a time are opened. A share-partition of a log
that is not open yet waits; one that cannot be opened is tried again, with a back-off.

**Truncated logs.** A log whose records at known offsets are others now is replaced by a new object, and the listener is
told, which drops the log's share-partitions. They load their state again, and cut it by the cluster's leader epochs.

**Ends.** Fetches tell where a log ends. The ends of logs without a fetch under way are asked for every ENDS_INTERVAL_S,
one request for each broker: a group's lag is computed from them. A log that ends before what is known is examined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import UNREACHABLE, TopicReplaced, UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_rpc.catalog import CatalogView, expected_topic_id
from kshare_upstream.list_offsets import offsets_at_broker
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.shared_lookups import SharedLookups

OPENINGS_LIMIT = 500
"""Partitions that are opened at the same time share requests to the cluster."""
OPEN_RETRY_MS = 250
OPEN_RETRY_MAX_MS = 5_000
REQUEST_DEADLINE_MS = 5_000
"""How long a request about one partition is repeated."""
ENDS_INTERVAL_S = 5.0


class UpstreamLogs:
    """See the module docstring. `start` before the first view; `close` ends it."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        node_id: int,
        limits: FetchLimits,
        window_limit_bytes: int,
        partition_window_limit_bytes: int,
        has_lease: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self._upstream = upstream
        self._lookups = SharedLookups(upstream)
        self._node_id = node_id
        self._has_lease = has_lease
        self._partition_window_limit_bytes = partition_window_limit_bytes
        self.windows = self._budget = WindowBudget(window_limit_bytes)
        self._problems = Problems(report, _now_ms)
        self._fetcher = LogFetcher(upstream, limits, self._problems, self._examine)
        self._view = CatalogView()
        self._logs: dict[TopicPartition, UpstreamLog] = {}
        self._openings: dict[UpstreamLog, asyncio.Task[None]] = {}
        self._may_open = asyncio.Semaphore(OPENINGS_LIMIT)
        self._on_replaced: Callable[[TopicPartition], None] = lambda key: None
        self._ends: asyncio.Task[None] | None = None
        self._ends_problems: set[str] = set()
        """The subjects of problems in the newest round of `_ask_ends`."""

    def start(self) -> None:
        self._fetcher.start()
        self._ends = asyncio.get_running_loop().create_task(self._follow_ends(), name="upstream-ends")

    def on_replaced(self, listener: Callable[[TopicPartition], None]) -> None:
        """`listener` is called with each log that was truncated."""
        self._on_replaced = listener

    async def close(self) -> None:
        tasks = [*self._openings.values(), *([self._ends] if self._ends is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetcher.stop()
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    # Finding

    def find(self, key: TopicPartition) -> UpstreamLog | None:
        log = self.find_opening(key)
        return log if log is not None and log.is_open else None

    def find_opening(self, key: TopicPartition) -> UpstreamLog | None:
        return self._logs.get(key) if self._has_lease() else None

    def lookup(self, key: TopicPartition) -> UpstreamLog:
        log = self.find(key)
        if log is not None:
            return log
        name = f"{topic_id_text(key.topic_id)}-{key.partition}"
        if not self._has_lease():
            text = f"leader {self._node_id} may have lost its lease and does not serve partition {name}"
        elif not self._view.version:
            text = f"leader {self._node_id} has not received the catalog yet and cannot look up partition {name}"
        elif key.topic_id not in self._view.topics_by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id_text(key.topic_id)}")
        elif self._view.partition(key) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name} does not exist")
        elif key in self._logs:
            text = f"leader {self._node_id} has not opened partition {name} of the existing cluster yet"
        else:
            text = f"leader {self._node_id} does not lead partition {name}, or it is moving away"
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)

    def current_leader(self, key: TopicPartition) -> tuple[int, int]:
        partition = self._view.partition(key)
        return (-1, -1) if partition is None else (partition.leader_node_id, partition.leader_epoch)

    def all_logs(self) -> list[UpstreamLog]:
        return [log for log in self._logs.values() if log.is_open] if self._has_lease() else []

    @property
    def offline_count(self) -> int:
        return sum([not log.is_open for log in self._logs.values()])

    def problems(self) -> list[str]:
        return self._problems.texts()

    # Following the catalog

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Brings the logs in line with a new view of the catalog."""
        self._view = new
        led = {key: (name, epoch) for key, name, epoch in self._led(new)}
        for key in [key for key in self._logs if key not in led]:
            self._close(self._logs.pop(key))
        for key, (name, leader_epoch) in led.items():
            log = self._logs.get(key)
            if log is None:
                self._logs[key] = self._begin_to_open(key, UpstreamPartitionName(name, key.partition), leader_epoch)
            else:
                log.leader_epoch = leader_epoch
                log.expect_topic_id(expected_topic_id(new.topics_by_id[key.topic_id]))

    def _led(self, view: CatalogView) -> Iterator[tuple[TopicPartition, str, int]]:
        for topic_id, topic in view.topics_by_id.items():
            for partition in topic.partitions:
                if partition.leader_node_id == self._node_id and not partition.is_fenced:
                    yield TopicPartition(topic_id, partition.partition), topic.name, partition.leader_epoch

    def _begin_to_open(self, key: TopicPartition, at: UpstreamPartitionName, leader_epoch: int) -> UpstreamLog:
        log = UpstreamLog(
            key,
            PartitionLog(self._upstream, at, deadline_ms=REQUEST_DEADLINE_MS, lookups=self._lookups),
            window_limit_bytes=self._partition_window_limit_bytes,
            now_ms=_now_ms,
            on_demand=self._fetcher.demand,
            budget=self._budget,
            leader_epoch=leader_epoch,
            on_truncated=self._fetcher.suspect,
        )
        topic = self._view.topics_by_id.get(key.topic_id)
        if topic is not None:
            log.expect_topic_id(expected_topic_id(topic))
        task = asyncio.get_running_loop().create_task(self._open(log), name=f"open {at}")
        self._openings[log] = task
        task.add_done_callback(lambda task: self._opening_ended(log, task))
        return log

    async def _open(self, log: UpstreamLog) -> None:
        """Opens a log, as often as it takes."""
        subject = f"opening of partition {log.at}"
        pause_ms = OPEN_RETRY_MS
        while True:
            try:
                async with self._may_open:
                    await log.open()
                break
            except (*UNREACHABLE, TopicReplaced) as error:
                self._problems.note(subject, str(error))
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, OPEN_RETRY_MAX_MS)
        self._problems.solved(subject)
        self._fetcher.add(log)

    def _opening_ended(self, log: UpstreamLog, task: asyncio.Task[None]) -> None:
        self._openings.pop(log, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            report_contained_bug(f"partition {log.at} could not be opened", bug)

    def _close(self, log: UpstreamLog) -> None:
        opening = self._openings.get(log)
        if opening is not None:
            opening.cancel()
        self._problems.forget(f"opening of partition {log.at}")
        self._problems.forget(_end_subject(log.at))
        self._fetcher.remove(log)
        log.close()

    # Truncated logs

    async def _examine(self, log: UpstreamLog) -> None:
        """Replaces a log that has other records than before."""
        try:
            offset = await (log.find_truncation() if self._fetcher.is_suspect(log) else log.learn_epochs())
            why = f"the existing cluster lost the records from offset {offset} on, and has or will have others there"
        except TopicReplaced as replaced:
            offset, why = 0, str(replaced)
        except UNREACHABLE as error:
            self._fetcher.examination_ended(log, str(error))
            return
        key = log.topic_partition
        if self._logs.get(key) is not log:
            return
        if offset is None:
            self._fetcher.examination_ended(log)
            return
        self._problems.note(f"truncation of partition {log.at}", why)
        self._problems.forget(f"truncation of partition {log.at}")
        self._close(log)
        self._logs[key] = self._begin_to_open(key, log.at, log.leader_epoch)
        self._on_replaced(key)

    # Ends

    async def _follow_ends(self) -> None:
        while True:
            await asyncio.sleep(ENDS_INTERVAL_S)
            try:
                await self._ask_ends()
            except Exception as bug:
                report_contained_bug("the ends of logs of the existing cluster could not be asked for", bug)

    async def _ask_ends(self) -> None:
        subjects: set[str] = set()
        by_leader = await self._by_leader(subjects)
        for node_id, logs in by_leader.items():
            subject = f"ends of partitions at broker {node_id}"
            known_ends = {at: log.high_watermark for at, log in logs.items()}
            try:
                starts = await offsets_at_broker(self._upstream, node_id, list(logs), EARLIEST_TIMESTAMP)
                ends = await offsets_at_broker(self._upstream, node_id, list(logs), LATEST_TIMESTAMP)
            except UNREACHABLE as error:
                subjects.add(subject)
                self._problems.note(subject, str(error))
                for at in logs:
                    self._upstream.forget_leader(at)
                continue
            self._problems.solved(subject)
            for at, log in logs.items():
                self._problems.solved(_end_subject(at))
                log.note_offsets(start=starts.get(at), end=ends.get(at))
                if at not in ends:
                    self._upstream.forget_leader(at)
                elif ends[at] < known_ends[at]:
                    self._fetcher.suspect(log)
        for subject in self._ends_problems - subjects:  # a broker that is gone, a log that is closed or fetched now
            self._problems.forget(subject)
        self._ends_problems = subjects

    async def _by_leader(self, subjects: set[str]) -> dict[int, dict[UpstreamPartitionName, UpstreamLog]]:
        """The logs whose ends are asked for; adds the subjects of problems to `subjects`."""
        by_leader: dict[int, dict[UpstreamPartitionName, UpstreamLog]] = {}
        for log in [log for log in self._logs.values() if log.is_open and not log.is_followed]:
            try:
                node_id = await self._upstream.leader_of(log.at)
            except UNREACHABLE as error:
                if not log.is_closed:
                    subjects.add(_end_subject(log.at))
                    self._problems.note(_end_subject(log.at), str(error))
                continue
            by_leader.setdefault(node_id, {})[log.at] = log
        return by_leader


def _end_subject(at: UpstreamPartitionName) -> str:
    return f"end of partition {at}"


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
