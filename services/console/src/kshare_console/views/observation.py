"""What one principal sees of the whole cluster: read every STEP_MS while it has viewers, which share it.

A reading costs requests about all groups, so it is not made for each viewer. It is made again at most every STEP_MS,
less often where it takes long, and ends KEEP_S after the last look. The history keeps POINTS_LIMIT readings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from kshare_console.cluster_client import ClusterClient, ShareOffset
from kshare_console.refusal import Refusal, unavailable
from kshare_console.role_calls import RoleCalls
from kshare_console.views.oldest_acquired import oldest_acquired, oldest_locks
from kshare_console.views.paging import Json
from kshare_console.views.rates import Rates, Reading, Totals, counters_of, rates_between
from kshare_core.security.acls import Operation
from kshare_rpc.generated.kshare.v1 import coordinator_pb2

Part = TypeVar("Part")
STEP_MS = 2_000
POINTS_LIMIT = 300
KEEP_S = 120.0
IDLE_SHARE = 4
LONGEST_PAUSE_S = 10.0
"""A reading that takes long is followed by a pause of so many times its duration, at most LONGEST_PAUSE_S."""
PART_TIMEOUT_S = 5.0
"""How long one part of a reading may take; what is late is told as a problem, and the others are shown."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group of the list; None where the cluster did not say."""

    group_id: str
    kind: str
    state: str
    members: int | None = None
    lag_records: int | None = None
    in_flight: int | None = None
    topics: tuple[str, ...] = ()


class Point(NamedTuple):
    """One reading in the history."""

    time_ms: int
    rates: Rates | None
    lag_records: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the cluster."""

    time_ms: int
    groups: tuple[GroupSummary, ...] = ()
    rates: Rates | None = None
    dead_letters: int = 0
    may_see_roles: bool = False
    nodes: coordinator_pb2.DescribeNodesResponse = field(default_factory=coordinator_pb2.DescribeNodesResponse)
    placement: coordinator_pb2.DescribePartitionsResponse = field(
        default_factory=coordinator_pb2.DescribePartitionsResponse
    )
    states: coordinator_pb2.DescribeStatePartitionsResponse = field(
        default_factory=coordinator_pb2.DescribeStatePartitionsResponse
    )
    coordinators: Mapping[str, str] = field(default_factory=dict)
    unreachable_leaders: Mapping[str, str] = field(default_factory=dict)
    """By address, why it does not answer."""
    oldest_acquired: tuple[Json, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    groups_problem: Refusal | None = None
    """Why `groups` are not known."""

    @property
    def lag_records(self) -> int | None:
        """None if the groups are not known."""
        if self.groups_problem is not None:
            return None
        return sum(group.lag_records or 0 for group in self.groups)


class _PartialReading:
    """Parts of a reading, and the refusals of those that failed. A user who is signed in no more ends the reading."""

    def __init__(self) -> None:
        self.problems: list[Refusal] = []

    async def of(self, part: Awaitable[Part], otherwise: Part) -> Part:
        try:
            async with asyncio.timeout(PART_TIMEOUT_S):
                return await part
        except TimeoutError:
            self.problems.append(unavailable(f"the cluster did not answer within {PART_TIMEOUT_S:g} s"))
            return otherwise
        except Refusal as problem:
            if problem.status == 401:
                raise
            self.problems.append(problem)
            return otherwise

    def first(self) -> Refusal:
        return self.problems[0]


class Observation:
    """See the module docstring. `now_ms` is the wall clock."""

    def __init__(self, client: ClusterClient, roles: RoleCalls, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._roles = roles
        self._now_ms = now_ms
        self._before: Reading | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked_at_s = 0.0
        self._may_see_roles: bool | None = None
        self._read: asyncio.Future[None] | None = None
        """Done at the next reading."""
        self._problem: Refusal | None = None
        self.snapshot: Snapshot | None = None
        self.history: deque[Point] = deque(maxlen=POINTS_LIMIT)
        self._topics: dict[str, dict[bytes, str]] = {}
        self._clients: dict[str, str] = {}

    async def look(self) -> Snapshot:
        """The newest reading, or the first one; Refusal if there is none and it fails."""
        loop = asyncio.get_running_loop()
        was_idle = self._task is None or self._task.done()
        self._looked_at_s = loop.time()
        if was_idle:
            self._task = loop.create_task(self._run(), name="observation")
        if self.snapshot is None or was_idle:
            await asyncio.shield(self._next_reading())
        if self._problem is not None:
            raise self._problem
        assert self.snapshot is not None
        return self.snapshot

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _next_reading(self) -> asyncio.Future[None]:
        if self._read is None:
            self._read = asyncio.get_running_loop().create_future()
        return self._read

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() - self._looked_at_s < KEEP_S:
            began_s = loop.time()
            try:
                await self._take()
                self._problem = None
            except Refusal as problem:
                self._problem = problem
            except asyncio.CancelledError:
                self._problem = Refusal(503, "UNAVAILABLE", "the console is stopping")
                raise
            finally:
                read, self._read = self._read, None
                if read is not None and not read.done():
                    read.set_result(None)
            took_s = loop.time() - began_s
            await asyncio.sleep(max(STEP_MS / 1000 - took_s, min(IDLE_SHARE * took_s, LONGEST_PAUSE_S)))

    async def _take(self) -> None:
        """Takes what can be read: while a role is away, the others and what is known of it are shown.

        Refusal if nothing is known about what the principal may see.
        """
        reading, groups_reading, roles = _PartialReading(), _PartialReading(), self._roles
        may_see_roles, coordinators, summaries, placement, nodes, states = await asyncio.gather(
            reading.of(self._client.may(Operation.DESCRIBE), self._may_see_roles),
            roles.coordinator_states(),
            groups_reading.of(self._summaries(), []),
            reading.of(roles.partitions(), coordinator_pb2.DescribePartitionsResponse()),
            reading.of(roles.nodes(), coordinator_pb2.DescribeNodesResponse()),
            reading.of(roles.state_partitions(), coordinator_pb2.DescribeStatePartitionsResponse()),
        )
        if may_see_roles is None:
            raise reading.first()
        self._may_see_roles = may_see_roles
        answers = await self._roles.totals([leader.rpc_address for leader in placement.leaders if leader.is_live])
        totals = [answer for answer in answers.values() if isinstance(answer, Totals)]
        visible = {group.group_id for group in summaries}
        counters = {each.incarnation: counters_of(each, visible) for each in totals}
        rates = None
        if groups_reading.problems:
            self._before = None
        else:
            now = Reading(asyncio.get_running_loop().time(), counters)
            rates, self._before = rates_between(self._before, now), now
        held = _held(totals)
        locks = oldest_locks(answers, self._topics)
        time_ms = self._now_ms()
        oldest = await reading.of(oldest_acquired(self._roles, locks, self._topics, self._clients, time_ms), ())
        self.snapshot = Snapshot(
            time_ms=time_ms,
            groups=tuple(_with_held(group, held) for group in summaries),
            rates=rates,
            dead_letters=sum(each.dead_letters for each in counters.values()),
            may_see_roles=may_see_roles,
            nodes=nodes,
            placement=placement,
            states=states,
            coordinators=coordinators,
            unreachable_leaders={address: words for address, words in answers.items() if isinstance(words, str)},
            oldest_acquired=oldest,
            problems=tuple(dict.fromkeys(each.words for each in (*reading.problems, *groups_reading.problems))),
            groups_problem=groups_reading.problems[0] if groups_reading.problems else None,
        )
        self.history.append(Point(self.snapshot.time_ms, rates, self.snapshot.lag_records))

    async def _summaries(self) -> list[GroupSummary]:
        listed = await self._client.list_groups()
        names = [group.group_id for group in listed]
        described = await self._client.describe_groups(names)
        offsets = await self._client.share_offsets(names)
        self._topics = {name: {one.topic_id: one.topic for one in found} for name, found in offsets.items()}
        self._clients = {member.member_id: member.client_id for group in described.values() for member in group.members}
        found = []
        for group in listed:
            name = group.group_id
            of_group = offsets.get(name, [])
            members = described.get(name)
            found.append(
                GroupSummary(
                    group_id=name,
                    kind=group.group_type,
                    state=group.group_state,
                    members=None if members is None else len(members.members),
                    lag_records=lag_of(of_group),
                    topics=tuple(sorted({one.topic for one in of_group})),
                )
            )
        return found


def lag_of(offsets: list[ShareOffset]) -> int | None:
    """The sum of the lags that are known; None if none is."""
    known = [one.lag for one in offsets if one.lag >= 0]
    return sum(known) if known else None


def _held(totals: list[Totals]) -> dict[str, int]:
    found: dict[str, int] = {}
    for answer in totals:
        for group in answer.groups:
            found[group.group_id] = found.get(group.group_id, 0) + group.acquired_count
    return found


def _with_held(group: GroupSummary, held: Mapping[str, int]) -> GroupSummary:
    return replace(group, in_flight=held.get(group.group_id, 0))
