"""Fetches what the upstream logs of this node lack: one Fetch at a time for each broker, isolation level and pace.

A pace is `bulk`, for offsets that are known to be there, which a broker answers at once; or `tail`, where it waits for
the next record. They have connections of their own, because a broker answers the requests of a connection in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.upstream.upstream_log import Fetched, UpstreamLog
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.partition_log import FETCH, LEADER_CHANGED, OutcomeUnknown, Refused
from kshare_upstream.port import LeaderUnknown, Upstream, UpstreamPartitionName
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.responses.fetch import FetchResponse, PartitionData

RETRY_BACKOFF_MS = 200
UNREACHABLE = (ConnectionLost, LeaderUnknown, NotServed, AuthenticationFailed, OutcomeUnknown, Refused)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one Fetch, under the names of Kafka's consumer."""

    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 16 * 1024 * 1024
    max_partition_fetch_bytes: int = 4 * 1024 * 1024
    client_rack: str = ""


class _Lane(NamedTuple):
    """Logs that are fetched together."""

    node_id: int
    read_committed: bool
    is_tail: bool

    @property
    def purpose(self) -> str:
        return f"fetch {'tail' if self.is_tail else 'bulk'} {'committed' if self.read_committed else 'all'}"


class LogFetcher:
    """Fetches for the logs that were added, until `stop`."""

    def __init__(self, upstream: Upstream, limits: FetchLimits, report: Callable[[str], None]) -> None:
        """`report` gets a problem when it begins, and when it has changed."""
        self._upstream = upstream
        self._limits = limits
        self._report = report
        self._logs: dict[UpstreamPartitionName, UpstreamLog] = {}
        self._lanes: dict[_Lane, asyncio.Task[None]] = {}
        self._wanted = asyncio.Event()
        self._dispatch: asyncio.Task[None] | None = None
        self._problem = ""

    def add(self, log: UpstreamLog) -> None:
        self._logs[log.at] = log

    def remove(self, log: UpstreamLog) -> None:
        self._logs.pop(log.at, None)

    def demand(self, log: UpstreamLog) -> None:
        """A log wants to be fetched now."""
        self._wanted.set()

    def start(self) -> None:
        self._dispatch = asyncio.get_running_loop().create_task(self._run(), name="upstream-fetches")

    async def stop(self) -> None:
        tasks = [task for task in (self._dispatch, *self._lanes.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        """Starts a lane for what is wanted and not under way; a lane that ends wakes this again."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for lane, positions in (await self._by_lane()).items():
                if lane not in self._lanes:
                    task = asyncio.get_running_loop().create_task(self._fetch(lane, positions), name=lane.purpose)
                    self._lanes[lane] = task
                    task.add_done_callback(lambda _, lane=lane: self._lane_ended(lane))  # type: ignore[misc]

    def _lane_ended(self, lane: _Lane) -> None:
        self._lanes.pop(lane, None)
        self._wanted.set()

    async def _by_lane(self) -> dict[_Lane, dict[UpstreamLog, int]]:
        """The offset from which each log is fetched next, by lane."""
        lanes: dict[_Lane, dict[UpstreamLog, int]] = {}
        for at, log in list(self._logs.items()):
            for read_committed in (False, True):
                position = log.next_fetch(read_committed=read_committed)
                if position is None:
                    continue
                try:
                    node_id = await self._upstream.leader_of(at)
                except UNREACHABLE as error:
                    self._note(str(error))
                    asyncio.get_running_loop().call_later(RETRY_BACKOFF_MS / 1000, self._wanted.set)
                    continue
                lane = _Lane(node_id, read_committed, position.is_tail)
                lanes.setdefault(lane, {})[log] = position.offset
        return lanes

    async def _fetch(self, lane: _Lane, positions: dict[UpstreamLog, int]) -> None:
        wait_ms = self._limits.fetch_max_wait_ms if lane.is_tail else 0
        try:
            answer = await self._upstream.ask_broker(
                lane.node_id, self._request(lane, positions, wait_ms), FETCH, wait_ms=wait_ms, purpose=lane.purpose
            )
        except UNREACHABLE as error:
            self._note(str(error))
            for log in positions:
                self._upstream.forget_leader(log.at)
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
            return
        if answer.error_code:
            self._note(str(Refused(answer.error_code, f"Fetch at broker {lane.node_id}")))
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
            return
        if await self._take(lane, positions, answer):
            self._problem = ""
        else:
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    def _request(self, lane: _Lane, positions: dict[UpstreamLog, int], wait_ms: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for log, offset in positions.items():
            topics.setdefault(log.at.topic, []).append(
                FetchPartition(
                    partition=log.at.partition,
                    fetch_offset=offset,
                    partition_max_bytes=self._limits.max_partition_fetch_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._limits.fetch_max_bytes,
            isolation_level=int(lane.read_committed),
            session_epoch=-1,
            topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
            rack_id=self._limits.client_rack,
        )

    async def _take(self, lane: _Lane, positions: dict[UpstreamLog, int], answer: FetchResponse) -> bool:
        """Hands the answer to the logs; False where one of them had an error."""
        is_fine = True
        for topic in answer.responses:
            for partition in topic.partitions:
                log = self._logs.get(UpstreamPartitionName(topic.topic, partition.partition_index))
                if log is None or log not in positions:
                    continue
                try:
                    is_fine &= await self._take_one(lane, log, positions[log], partition)
                except (KafkaError, *UNREACHABLE) as error:
                    self._note(f"partition {log.at}: {error}")
                    is_fine = False
        return is_fine

    async def _take_one(self, lane: _Lane, log: UpstreamLog, offset: int, partition: PartitionData) -> bool:
        if partition.error_code == ErrorCode.NONE:
            parts = partition.records or ()
            aborted = [(each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()]
            fetched = Fetched(
                offset,
                memoryview(parts[0]) if len(parts) == 1 else b"".join(parts),
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
                aborted,
            )
            log.take(fetched, read_committed=lane.read_committed)
            return True
        if partition.error_code in LEADER_CHANGED:
            self._upstream.forget_leader(log.at)
        elif partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await log.open()  # its beginning was deleted, or it was truncated
            if offset <= log.high_watermark:
                return True
        self._note(str(Refused(partition.error_code, f"Fetch of partition {log.at}")))
        return False

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._report(problem)
        self._problem = problem
