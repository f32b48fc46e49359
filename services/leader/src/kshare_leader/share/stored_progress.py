"""The stored progress of share-partitions that were not fetched since this leader started, or since it leads them.

Their lag is computed from it, and those with Archiving records are loaded, so that their dead letters are sent
although no member fetches. Progress is in memory only while a share-partition is in use. So this leader reads the
stored progress of all its share-partitions from the share coordinators, without loading any: when it starts, when it
gains partitions, when state partitions change owners, after an administrator replaced state, and every
REFRESH_INTERVAL_S. Pages are read one after the other, PAUSE_S apart: 10,000 share-partitions take about two seconds,
and 0.2 s of the share coordinators' processor time.

A lag needs the end of the log. While logs of share-partitions with stored progress are being opened, everything is read
again after RETRY_INTERVAL_S, then after twice as long each time, up to REFRESH_INTERVAL_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.metrics import LeaderMetrics, Progress
from kshare_leader.ports import TopicLogs
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import LIST_STATE_SUMMARIES
from kshare_rpc.network import CallFailed, Channel

REFRESH_INTERVAL_S = 60.0
RETRY_INTERVAL_S = 2.0
SETTLE_S = 0.2
"""The delay from a change to the requests: the share coordinators learn of it too, and several changes are combined."""
PAUSE_S = 0.05
CALL_TIMEOUT_MS = 2_000
PAGES_LIMIT = 100_000
"""The limit of pages from one share coordinator, against an endless listing."""


class StoredProgress:
    """See the module docstring. `view` is the newest catalog, `channel` returns the channel to an address."""

    def __init__(
        self,
        *,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        logs: TopicLogs,
        metrics: LeaderMetrics,
        node_id: int,
        report: Callable[[str], None],
        found_archiving: Callable[[SharePartitionKey], None],
    ) -> None:
        self._view = view
        self._channel = channel
        self._logs = logs
        self._metrics = metrics
        self._node_id = node_id
        self._report = report
        self._found_archiving = found_archiving
        self._is_due = asyncio.Event()
        self._problems: list[str] = []
        self._is_reported = False
        self._opening_count = 0
        """Share-partitions of the last reading whose logs were not open yet."""
        self._opening_wait_s = RETRY_INTERVAL_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = restarted_after_bugs("the refresh of stored progress", self._run)
        self._task = asyncio.get_running_loop().create_task(work, name="stored-progress")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Schedules a refresh soon, after a change."""
        self._is_due.set()

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Handles a new view of the catalog."""
        if old.state_partition_owners != new.state_partition_owners or self._gains(old, new):
            self.wake()

    def _gains(self, old: CatalogView, new: CatalogView) -> bool:
        if old.topics_by_id is new.topics_by_id:
            return False
        return any(
            partition.leader_node_id == self._node_id
            for topic_id, topic in new.topics_by_id.items()
            if topic is not old.topics_by_id.get(topic_id)
            for partition in topic.partitions
        )

    async def _run(self) -> None:
        while True:
            is_complete = await self._ask_all()
            try:
                async with asyncio.timeout(self._wait_s() if is_complete else RETRY_INTERVAL_S):
                    await self._is_due.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLE_S)

    def _wait_s(self) -> float:
        """The time to the next refresh, after one that all share coordinators answered."""
        if not self._opening_count:
            self._opening_wait_s = RETRY_INTERVAL_S
            return REFRESH_INTERVAL_S
        wait_s = self._opening_wait_s
        self._opening_wait_s = min(2 * wait_s, REFRESH_INTERVAL_S)
        return wait_s

    async def _ask_all(self) -> bool:
        """Reads from all share coordinators; returns whether every one answered."""
        self._is_due.clear()
        self._opening_count = 0
        view = self._view()
        addresses = [node.rpc_address for node in view.nodes if node.role == coordinator_pb2.ROLE_SHARE_COORDINATOR]
        problems = [problem for address in addresses if (problem := await self._ask(address)) is not None]
        if problems and problems == self._problems and not self._is_reported:  # not one that is only behind
            self._report(f"the lag of share-partitions that are not loaded may be missing, retrying: {problems[0]}")
        self._is_reported = problems == self._problems
        self._problems = problems
        return bool(view.version) and not problems

    async def _ask(self, address: str) -> str | None:
        """Reads all pages of one share coordinator; returns the problem, or None."""
        position, loading = b"", 0
        for _ in range(PAGES_LIMIT):
            request = messages.ListStateSummariesRequest(
                leader_node_id=self._node_id, position=position, catalog_version=self._view().version
            )
            asked_moment = self._metrics.next_moment()
            try:
                answer, _ = await self._channel(address).call(LIST_STATE_SUMMARIES, request, timeout_ms=CALL_TIMEOUT_MS)
            except CallFailed as failure:
                return f"{address}: {failure}"
            if answer.error_code:
                return f"{address}: {ErrorCode(answer.error_code).name} {answer.error_message}"
            self._note(answer, asked_moment)
            loading += answer.loading_state_partitions
            position = answer.next_position
            if not position:
                return f"{address} is loading {loading} state partitions" if loading else None
            await asyncio.sleep(PAUSE_S)
        return f"{address} has no last page"

    def _note(self, answer: messages.ListStateSummariesResponse, asked_moment: int) -> None:
        view = self._view()
        for result in answer.results:
            key = SharePartitionKey(result.group_id, result.topic_id, result.partition)
            partition, log = view.partition(key.topic_partition), self._logs.find(key.topic_partition)
            if partition is None or partition.leader_node_id != self._node_id:
                continue
            if result.has_archiving:
                self._found_archiving(key)
            if log is None:
                self._opening_count += self._logs.find_opening(key.topic_partition) is not None
                continue
            progress = Progress(result.start_offset, result.delivery_complete_count)
            self._metrics.note_stored(key, progress, log.high_watermark, asked_moment)
