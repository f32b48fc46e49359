"""Fetches what the upstream logs of this node lack, with few Fetches at a time for each broker and isolation level.

One is for the `bulk` of offsets that are known to be there, which a broker answers at once. Others are at the `tail` of
logs, where the broker waits for the next record: a log whose end is reached while one waits without it gets another
one, up to TAILS. Each has a connection of its own, because a broker answers the requests of a connection in order.

A record ends the Fetch that waited for it, with all its logs. So logs without a record for QUIET_AFTER_S share a Fetch
of their own, the `QUIET` one: a busy log does not begin the Fetch of a thousand quiet ones anew with each record. A log
that becomes quiet while that one waits stays in another, which ends shortly before it, and then joins it.

A fetch names the leader epoch of the record before its offset, so a broker whose log has another record there says so
(KIP-595) before any of its records is taken. That, an offset out of range, an unknown topic and an end that lies below
what is known lead to an examination of the log (`examine`), during which it is not fetched. Where that epoch is not
known, an examination learns it.

A broker that is no longer the leader may answer all the same (since Kafka 2.4), with what it has got from the leader.
So leaders are looked up again after each examination, and every LEADER_AGE_MS.

The choice of what to fetch looks only at logs of which something has changed since: `_wanting`. A log that has to wait
for a Fetch under way, an examination, a leader or a back-off comes back into it when that has ended.

A leader may name a replica in this node's rack to fetch from (KIP-392); it is fetched from for PREFERRED_MS, or until
an error. A log with an error is fetched again after a back-off. An error that concerns the records at an offset stops
only that offset (`UpstreamLog.give_up`), and so does an answer without records where the broker says that there are.

A broker fills an answer in the order of the request, up to a limit, and gives only the first partition with records a
batch beyond it. So logs that an answer had nothing for come first in the next Fetch, and those that it served last.

Compressed batches are checked before the logs get them (`unreadable_batches`); the lane waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug, restarted_after_bugs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.stalled_offsets import STALL_KEPT_MS
from kshare_leader.upstream.unreadable_batches import UnreadableBatches
from kshare_leader.upstream.upstream_log import NO_ID, UNREACHABLE, Fetched, FetchPosition, UpstreamLog
from kshare_upstream.partition_log import FETCH, FETCH_BY_ID, LEADER_CHANGED, Refused
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.responses.fetch import FetchResponse, PartitionData

RETRY_BACKOFF_MS = 200
RETRY_BACKOFF_MAX_MS = 1_000
EMPTY_PAUSE_MS = 10
"""The pause after an answer without records: a broker may not wait, although it was asked to."""
AHEAD_PAUSE_MS = 1
"""The pause before a fetch of what no reader waits for.

A share fetch that was read for still has its acknowledgements to store. The megabytes of a fetch that was sent before
them would come in between, at the broker and here.
"""
PREFERRED_MS = 300_000
"""How long a replica is preferred (metadata.max.age.ms of Kafka's consumer)."""
LEADER_AGE_MS = 300_000
"""How long a leader is fetched from without another look-up (likewise)."""
NO_REPLICA = -1
TAILS = 4
"""How many Fetches may wait at one broker for the next records of one isolation level."""
QUIET = 0
"""The number of the one among them that the quiet logs share."""
QUIET_AFTER_S = 10.0
JOINS_BEFORE_MS = 10
"""How long before the Fetch of the quiet logs another one with such logs ends, so that these join it."""
JOINS_WITHIN_MS = 2 * (JOINS_BEFORE_MS + EMPTY_PAUSE_MS)
"""A quiet log waits for the end of that Fetch if it is due within this time, and no longer than this if it is late."""

_SUSPICIOUS = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors after which it is examined whether the log still is the one that was opened."""

_OF_RECORDS = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors that may concern the records at one offset only."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one Fetch, under the names of Kafka's consumer."""

    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 16 * 1024 * 1024
    max_partition_fetch_bytes: int = 8_000_000
    """Half of a window: each Fetch has a price beside that of its records, at the broker and here, so there are few.

    A multiple of librdkafka's batch.size, because a broker also sends the part of a batch that still fits, in vain.
    """
    client_rack: str = ""


class _LaneKind(NamedTuple):
    """Lanes that are as good as each other."""

    node_id: int
    read_committed: bool
    is_tail: bool


class _Lane(NamedTuple):
    """Logs that are fetched together."""

    node_id: int
    read_committed: bool
    is_tail: bool
    number: int = 0
    """Which of those that wait at the tail of logs."""

    @property
    def kind(self) -> _LaneKind:
        return _LaneKind(self.node_id, self.read_committed, self.is_tail)

    @property
    def purpose(self) -> str:
        pace = f"tail {self.number}" if self.is_tail else "bulk"
        return f"fetch {pace} {'committed' if self.read_committed else 'all'}"


class _BackOff:
    """When a log is fetched again after errors; times are the event loop's."""

    __slots__ = ("attempts", "until_s")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_s = 0.0

    def failed(self) -> float:
        """Returns the pause in seconds."""
        pause_s = min(RETRY_BACKOFF_MS << min(self.attempts, 10), RETRY_BACKOFF_MAX_MS) / 1000
        self.attempts += 1
        self.until_s = asyncio.get_running_loop().time() + pause_s
        return pause_s


class LogFetcher:
    """Fetches for the logs that were added, until `stop`. `examine` must not raise but for a bug."""

    def __init__(
        self,
        upstream: Upstream,
        limits: FetchLimits,
        problems: Problems,
        examine: Callable[[UpstreamLog], Awaitable[None]],
    ) -> None:
        self._upstream = upstream
        self._limits = limits
        self._problems = problems
        self._examine = examine
        self._unreadable = UnreadableBatches()
        self._logs: dict[UpstreamPartitionName, UpstreamLog] = {}
        self._names: dict[bytes, str] = {}
        self._lanes: dict[_Lane, asyncio.Task[None]] = {}
        self._at_tail: set[tuple[int, bool, UpstreamLog]] = set()
        """The logs whose next record a Fetch waits for, with its broker and whether it is read_committed."""
        self._busy_until_s: dict[UpstreamLog, float] = {}
        """When a log becomes quiet, in the event loop's time."""
        self._quiet_ends_s: dict[_LaneKind, float] = {}
        """When the Fetch of the quiet logs ends, if no record comes before."""
        self._wanting: dict[UpstreamLog, None] = {}
        """The logs to be looked at: they may have something to fetch."""
        self._blocked: dict[_LaneKind, dict[UpstreamLog, None]] = {}
        """The logs with something to fetch for which no lane of this kind is free."""
        self._backing_off: dict[UpstreamLog, _BackOff] = {}
        self._examinations: dict[UpstreamLog, asyncio.Task[None]] = {}
        self._suspects: set[UpstreamLog] = set()
        """The logs that are examined for more than their epochs."""
        self._preferred: dict[UpstreamPartitionName, tuple[int, float]] = {}
        self._leaders: dict[UpstreamPartitionName, tuple[int, float]] = {}
        """The leaders, and until when they are not looked up again."""
        self._lookups: dict[UpstreamLog, asyncio.Task[None]] = {}
        self._ahead: set[UpstreamLog] = set()
        """The logs that will be looked at after AHEAD_PAUSE_MS."""
        self._pausing: set[UpstreamLog] = set()
        """The logs that will be looked at when their ends may be fetched again (`UpstreamLog.tail_pause_ms`)."""
        self._stopped: set[UpstreamLog] = set()
        """The logs with a problem at an offset that cannot be fetched."""
        self._wanted = asyncio.Event()
        self._dispatch: asyncio.Task[None] | None = None

    def add(self, log: UpstreamLog) -> None:
        self._logs[log.at] = log
        self._note_busy(log)
        self.demand(log)

    def remove(self, log: UpstreamLog) -> None:
        if self._logs.get(log.at) is log:
            del self._logs[log.at]
        self._wanting.pop(log, None)
        for blocked in self._blocked.values():
            blocked.pop(log, None)
        self._backing_off.pop(log, None)
        self._busy_until_s.pop(log, None)
        self._preferred.pop(log.at, None)
        self._leaders.pop(log.at, None)
        self._problems.forget(f"partition {log.at}")
        self._stopped.discard(log)
        self._problems.forget(_records_subject(log))

    def demand(self, log: UpstreamLog, is_awaited: bool = True) -> None:
        """A log wants to be fetched: now, or ahead of its readers if none of them waits for it."""
        if is_awaited:
            self._demand_now(log)
        elif log not in self._ahead:
            self._ahead.add(log)
            asyncio.get_running_loop().call_later(AHEAD_PAUSE_MS / 1000, self._fetch_ahead, log)

    def _fetch_ahead(self, log: UpstreamLog) -> None:
        self._ahead.discard(log)
        self._demand_now(log)

    def _demand_now(self, log: UpstreamLog) -> None:
        if not any(log in blocked for kind, blocked in self._blocked.items() if not kind.is_tail):
            self._look_at(log)

    def _look_at(self, log: UpstreamLog) -> None:
        self._wanting[log] = None
        self._wanted.set()

    def start(self) -> None:
        work = restarted_after_bugs("the dispatch of fetches", self._run)
        self._dispatch = asyncio.get_running_loop().create_task(work, name="upstream-fetches")

    async def stop(self) -> None:
        tasks = [self._dispatch, *self._lanes.values(), *self._examinations.values(), *self._lookups.values()]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._unreadable.close()

    # Dispatching

    async def _run(self) -> None:
        """Starts a lane for what is wanted and not under way; a lane that ends wakes this again."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for lane, positions in self._by_lane().items():
                if lane.is_tail:
                    self._at_tail.update((lane.node_id, lane.read_committed, log) for log in positions)
                if lane.is_tail and lane.number == QUIET:
                    ends_s = asyncio.get_running_loop().time() + self._limits.fetch_max_wait_ms / 1000
                    self._quiet_ends_s[lane.kind] = ends_s
                served: set[UpstreamLog] = set()
                task = asyncio.get_running_loop().create_task(self._fetch(lane, positions, served), name=lane.purpose)
                self._lanes[lane] = task
                task.add_done_callback(partial(self._lane_ended, lane, positions, served))

    def _lane_ended(
        self, lane: _Lane, positions: Iterable[UpstreamLog], served: Set[UpstreamLog], _: asyncio.Task[None]
    ) -> None:
        """The logs that it brought nothing for come first, then those that waited for it, then those that it served.

        The latter may have waited for it too: their readers went on while the records of others were on their way.
        """
        self._lanes.pop(lane, None)
        if lane.is_tail:
            self._at_tail.difference_update((lane.node_id, lane.read_committed, log) for log in positions)
        blocked: dict[UpstreamLog, None] = self._blocked.pop(lane.kind, {})
        others = [log for log in (*positions, *blocked, *self._wanting) if log not in served]
        last = [log for log in positions if log in served]
        self._wanting = {log: None for log in (*others, *last, *self._wanting) if self._logs.get(log.at) is log}
        self._wanted.set()

    def _look_later(self, log: UpstreamLog, pause_s: float) -> None:
        asyncio.get_running_loop().call_later(pause_s, self._look_at, log)

    def _look_after_pause(self, log: UpstreamLog, pause_ms: int) -> None:
        if pause_ms and log not in self._pausing:
            self._pausing.add(log)
            asyncio.get_running_loop().call_later((pause_ms + 1) / 1000, self._pause_ended, log)

    def _pause_ended(self, log: UpstreamLog) -> None:
        self._pausing.discard(log)
        self._look_at(log)

    def _by_lane(self) -> dict[_Lane, dict[UpstreamLog, FetchPosition]]:
        """What to fetch next of each log that is to be looked at, by the lanes that are free."""
        lanes: dict[_Lane, dict[UpstreamLog, FetchPosition]] = {}
        wanting, self._wanting = self._wanting, {}
        for log in wanting:
            if log in self._stopped and not log.is_stalled:
                self._stopped.discard(log)
                self._problems.solved(_records_subject(log))
            if self._logs.get(log.at) is not log or log in self._examinations or self._is_backing_off(log):
                continue
            try:
                self._choose_lanes(log, lanes)
            except Exception as bug:  # no log must stay unread because of another one
                report_contained_bug(f"the choice of what to fetch of partition {log.at} failed unexpectedly", bug)
                self._look_later(log, RETRY_BACKOFF_MS / 1000)
        return lanes

    def _choose_lanes(self, log: UpstreamLog, lanes: dict[_Lane, dict[UpstreamLog, FetchPosition]]) -> None:
        for read_committed in (False, True):
            position = log.next_fetch(read_committed=read_committed)
            if position is None:
                self._look_after_pause(log, log.tail_pause_ms(read_committed=read_committed))
                continue
            if log.lacks_epochs(position):
                self._begin_examination(log)
                return
            node_id = self._source_of(log.at)
            if node_id is None:
                self._look_up(log)
                return
            if position.is_tail and (node_id, read_committed, log) in self._at_tail:
                continue
            kind = _LaneKind(node_id, read_committed, position.is_tail)
            lane = self._free_tail(kind, log) if position.is_tail else self._free_lane(kind, (0,))
            if lane is not None:
                lanes.setdefault(lane, {})[log] = position
            else:
                self._blocked.setdefault(kind, {})[log] = None

    def _free_lane(self, kind: _LaneKind, numbers: Iterable[int]) -> _Lane | None:
        for number in numbers:
            lane = _Lane(*kind, number)
            if lane not in self._lanes:
                return lane
        return None

    def _free_tail(self, kind: _LaneKind, log: UpstreamLog) -> _Lane | None:
        """A lane in which a log can wait for its next record; a quiet log may have to wait until it can join."""
        others = range(QUIET + 1, TAILS)
        if self._is_busy(log):
            return self._free_lane(kind, (*others, QUIET))
        if _Lane(*kind, QUIET) in self._lanes:
            ends_in_ms = self._quiet_ends_in_ms(kind)
            if abs(ends_in_ms) <= JOINS_WITHIN_MS:
                self._look_later(log, (ends_in_ms + JOINS_WITHIN_MS + 1) / 1000)  # unless it ends, as it should
                return None
        return self._free_lane(kind, (QUIET, *others))

    def _note_busy(self, log: UpstreamLog) -> None:
        self._busy_until_s[log] = asyncio.get_running_loop().time() + QUIET_AFTER_S

    def _is_busy(self, log: UpstreamLog) -> bool:
        return self._busy_until_s.get(log, 0.0) > asyncio.get_running_loop().time()

    def _quiet_ends_in_ms(self, kind: _LaneKind) -> int:
        return round((self._quiet_ends_s[kind] - asyncio.get_running_loop().time()) * 1000)

    def _wait_ms(self, lane: _Lane, logs: Iterable[UpstreamLog]) -> int:
        """How long the broker shall wait for a record."""
        if not lane.is_tail:
            return 0
        wait_ms = self._limits.fetch_max_wait_ms
        has_quiet_ones = lane.number != QUIET and not all(map(self._is_busy, logs))
        if not has_quiet_ones or _Lane(*lane.kind, QUIET) not in self._lanes:
            return wait_ms
        left_ms = self._quiet_ends_in_ms(lane.kind) - JOINS_BEFORE_MS - EMPTY_PAUSE_MS
        return min(wait_ms, left_ms) if left_ms > 0 else wait_ms

    def _is_backing_off(self, log: UpstreamLog) -> bool:
        back_off = self._backing_off.get(log)
        return back_off is not None and back_off.until_s > asyncio.get_running_loop().time()

    def _source_of(self, at: UpstreamPartitionName) -> int | None:
        """The broker to fetch a partition from: its leader, or the replica that the leader prefers for this rack.

        None where the leader has to be looked up.
        """
        preferred = self._preferred.get(at)
        if preferred is not None:
            if asyncio.get_running_loop().time() < preferred[1]:
                return preferred[0]
            del self._preferred[at]
        leader = self._leaders.get(at)
        if leader is None:
            return None
        if asyncio.get_running_loop().time() >= leader[1]:
            self._forget_leader(at)
            return None
        return leader[0]

    def _look_up(self, log: UpstreamLog) -> None:
        """Looks up a log's leader; the others are fetched meanwhile."""
        if log not in self._lookups:
            task = asyncio.get_running_loop().create_task(self._find_leader(log), name=f"leader of {log.at}")
            self._lookups[log] = task
            task.add_done_callback(lambda _: self._lookups.pop(log, None))

    async def _find_leader(self, log: UpstreamLog) -> None:
        try:
            node_id = await self._upstream.leader_of(log.at)
            self._leaders[log.at] = node_id, asyncio.get_running_loop().time() + LEADER_AGE_MS / 1000
        except UNREACHABLE as error:
            self._failed(log, str(error))
        except Exception as bug:
            report_contained_bug(f"the look-up of the leader of partition {log.at} failed unexpectedly", bug)
            self._failed(log, repr(bug))
        self._look_at(log)

    def _forget_leader(self, at: UpstreamPartitionName) -> None:
        self._leaders.pop(at, None)
        self._upstream.forget_leader(at)

    def _failed(self, log: UpstreamLog, problem: str) -> None:
        """Notes an error of one log, which is fetched again after a back-off, from its leader."""
        self._preferred.pop(log.at, None)
        if self._logs.get(log.at) is not log:
            return
        self._problems.note(f"partition {log.at}", problem)
        self._look_later(log, self._backing_off.setdefault(log, _BackOff()).failed() + 0.001)

    def _stalled(self, log: UpstreamLog, position: FetchPosition, read_committed: bool, problem: str = "") -> None:
        """The records at this position cannot be fetched now, and are tried at the leader after a back-off.

        The rest of the log is fetched meanwhile.
        """
        self._preferred.pop(log.at, None)
        if self._logs.get(log.at) is not log:
            return
        if problem:
            self._stopped.add(log)
            self._problems.note(_records_subject(log), f"offset {position.offset} cannot be read: {problem}")
        pause_ms = log.give_up(position.offset, read_committed=read_committed)
        self._look_later(log, (pause_ms + 1) / 1000)
        self._look_later(log, (pause_ms + STALL_KEPT_MS + 2) / 1000)  # to end the problem when no reader is stopped

    def _succeeded(self, log: UpstreamLog) -> None:
        if self._backing_off.pop(log, None) is not None:
            self._problems.solved(f"partition {log.at}")

    # Fetching

    async def _fetch(
        self, lane: _Lane, positions: Mapping[UpstreamLog, FetchPosition], served: set[UpstreamLog]
    ) -> None:
        """Adds to `served` the logs that got records."""
        try:
            await self._fetch_and_take(lane, positions, served)
        except Exception as bug:
            report_contained_bug(f"a fetch from broker {lane.node_id} failed unexpectedly", bug)
            for log in positions:
                self._failed(log, repr(bug))

    async def _fetch_and_take(
        self, lane: _Lane, positions: Mapping[UpstreamLog, FetchPosition], served: set[UpstreamLog]
    ) -> None:
        wait_ms = self._wait_ms(lane, positions)
        by_id = all(log.topic_id != NO_ID for log in positions)
        try:
            answer = await self._upstream.ask_broker(
                lane.node_id,
                self._request(lane, positions, wait_ms),
                FETCH_BY_ID if by_id else FETCH,
                wait_ms=wait_ms,
                purpose=lane.purpose,
            )
        except UNREACHABLE as error:
            for log in positions:
                if log.at not in self._preferred:
                    self._forget_leader(log.at)
                self._failed(log, str(error))
            return
        if answer.error_code:
            problem = str(Refused(answer.error_code, f"Fetch at broker {lane.node_id}"))
            for log in positions:
                self._failed(log, problem)
            return
        unreadable = {}
        for at, partition in self._partitions(answer):
            if found := await self._unreadable.find(_records_of(partition)):
                unreadable[at] = found
        if not self._take(lane, positions, answer, unreadable, served):
            await asyncio.sleep(EMPTY_PAUSE_MS / 1000)

    def _request(self, lane: _Lane, positions: Mapping[UpstreamLog, FetchPosition], wait_ms: int) -> FetchRequest:
        topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for log, position in positions.items():
            self._names[log.topic_id] = log.at.topic
            topics.setdefault((log.at.topic, log.topic_id), []).append(
                FetchPartition(
                    partition=log.at.partition,
                    fetch_offset=position.offset,
                    partition_max_bytes=min(self._limits.max_partition_fetch_bytes, max(1, position.max_bytes)),
                    last_fetched_epoch=position.last_epoch,
                )
            )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._limits.fetch_max_bytes,
            isolation_level=int(lane.read_committed),
            session_epoch=-1,
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in topics.items()
            ],
            rack_id=self._limits.client_rack,
        )

    def _partitions(self, answer: FetchResponse) -> Iterator[tuple[UpstreamPartitionName, PartitionData]]:
        for topic in answer.responses:
            name = topic.topic or self._names.get(topic.topic_id, "")
            for partition in topic.partitions:
                yield UpstreamPartitionName(name, partition.partition_index), partition

    def _take(
        self,
        lane: _Lane,
        positions: Mapping[UpstreamLog, FetchPosition],
        answer: FetchResponse,
        unreadable: Mapping[UpstreamPartitionName, Mapping[int, str]],
        served: set[UpstreamLog],
    ) -> bool:
        """Hands the answer to the logs; returns whether it had records.

        Of the first log without records it is known that the broker does not deliver them. The answer's limit may have
        left out the others: a broker may charge the limit with records that it leaves out later.
        """
        has_records, lacks_records = False, False
        for at, partition in self._partitions(answer):
            log = self._logs.get(at)
            if log is None or log not in positions:
                continue
            position = positions[log]
            if any(partition.records or ()):
                has_records = True
                self._note_busy(log)
            elif not (has_records or lacks_records) and _lacks_records(lane, position, partition):
                lacks_records = True
                self._stalled(log, position, lane.read_committed)
            try:
                if self._take_one(lane, log, position, partition, unreadable.get(at, {})):
                    served.add(log)
            except KafkaError as error:  # its records are damaged
                self._stalled(log, position, lane.read_committed, str(error))
        return has_records

    def _take_one(
        self,
        lane: _Lane,
        log: UpstreamLog,
        position: FetchPosition,
        partition: PartitionData,
        unreadable: Mapping[int, str],
    ) -> bool:
        """Returns whether the log got records."""
        code = partition.error_code
        if code == ErrorCode.NONE:
            if _diverges(partition):
                self._suspect(log)
                return False
            if partition.preferred_read_replica != NO_REPLICA:
                until_s = asyncio.get_running_loop().time() + PREFERRED_MS / 1000
                self._preferred[log.at] = partition.preferred_read_replica, until_s
            elif log.at not in self._preferred and _has_receded(position, partition):
                self._suspect(log)
                return False
            for offset, problem in unreadable.items():
                text = "is archived for share groups, because no consumer can read it"
                self._problems.happened(f"partition {log.at}", f"the batch at offset {offset} {text}: {problem}")
            fetched = _fetched(position.offset, partition, unreadable)
            has_batch = log.take(fetched, read_committed=lane.read_committed)
            self._succeeded(log)
            return has_batch
        is_from_replica = log.at in self._preferred
        if code in LEADER_CHANGED:
            self._forget_leader(log.at)
        if code in _SUSPICIOUS and not is_from_replica:
            self._suspect(log)
        if code in _OF_RECORDS and not position.is_tail:
            self._stalled(log, position, lane.read_committed, str(Refused(code, f"Fetch of partition {log.at}")))
        elif code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._failed(log, str(Refused(code, f"Fetch of partition {log.at}")))
        self._preferred.pop(log.at, None)  # a replica may be behind its leader
        return False

    def suspect(self, log: UpstreamLog) -> None:
        """Has a log examined, because another request than a Fetch showed fewer records than are known."""
        if self._logs.get(log.at) is log:
            self._suspect(log)

    def is_suspect(self, log: UpstreamLog) -> bool:
        """Whether an examination is to find out more than the log's epochs."""
        return log in self._suspects

    def _suspect(self, log: UpstreamLog) -> None:
        self._suspects.add(log)
        self._forget_leader(log.at)
        self._begin_examination(log)

    def _begin_examination(self, log: UpstreamLog) -> None:
        if log not in self._examinations:
            task = asyncio.ensure_future(self._examine(log))
            self._examinations[log] = task
            task.add_done_callback(lambda _: self._examined(log))

    def _examined(self, log: UpstreamLog) -> None:
        task = self._examinations.pop(log)
        self._suspects.discard(log)
        if not task.cancelled() and (bug := task.exception()) is not None:
            report_contained_bug(f"the examination of partition {log.at} failed unexpectedly", bug)
            self._failed(log, repr(bug))
        self._look_at(log)

    def examination_ended(self, log: UpstreamLog, problem: str = "") -> None:
        """The log stays as it is; it is fetched again after a back-off, lest the broker says the same at once.

        With a `problem` nothing was found out; the next fetch shows the cause again. Without a back-off where nothing
        but epochs was to be learned, and they were.
        """
        if problem:
            self._failed(log, problem)
            return
        positions = [log.next_fetch(read_committed=each) for each in (False, True)]
        if log not in self._suspects and not any(each is not None and log.lacks_epochs(each) for each in positions):
            return
        self._preferred.pop(log.at, None)
        self._look_later(log, self._backing_off.setdefault(log, _BackOff()).failed() + 0.001)


def _diverges(partition: PartitionData) -> bool:
    """Whether the broker's log has another record before the position."""
    return partition.diverging_epoch is not None and partition.diverging_epoch.end_offset >= 0


def _has_receded(position: FetchPosition, partition: PartitionData) -> bool:
    """Whether the log ends, for its broker, where more records were known to be when the Fetch was sent.

    The records are lost, or the broker's high watermark lags after an election (KIP-207). Nothing else tells: the
    records that were read are all there, so no epoch diverges.
    """
    return not position.is_tail and not any(partition.records or ()) and partition.high_watermark <= position.offset


def _lacks_records(lane: _Lane, position: FetchPosition, partition: PartitionData) -> bool:
    """Whether the broker has records at this position, as it says, and has not sent any."""
    if partition.error_code or position.is_tail:
        return False
    if partition.preferred_read_replica != NO_REPLICA or _diverges(partition):
        return False
    end = partition.last_stable_offset if lane.read_committed else partition.high_watermark
    return position.offset < end


def _records_subject(log: UpstreamLog) -> str:
    return f"records of partition {log.at}"


def _records_of(partition: PartitionData) -> bytes | memoryview:
    parts = partition.records or ()
    return memoryview(parts[0]) if len(parts) == 1 else b"".join(parts)


def _fetched(offset: int, partition: PartitionData, unreadable: Mapping[int, str]) -> Fetched:
    return Fetched(
        offset,
        _records_of(partition),
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        [(each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()],
        unreadable,
    )
