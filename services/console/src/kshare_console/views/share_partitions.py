"""Share-partitions of a group: pages of numbers, the strip of one of them, and records that were delivered again.

Start offsets and lags are the cluster's answer to the user (DescribeShareGroupOffsets), which leaves out groups and
topics that the user may not describe. Runs are in the memory of leaders; only those of the shown page are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_console.cluster_client import ClusterClient, ShareOffset
from kshare_console.refusal import Refusal, bad_request, not_found
from kshare_console.role_calls import RoleCalls
from kshare_console.views.paging import Json, PageRequest, listing, page_of, place_key
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2 as pb
from kshare_upstream.partition_log import LATEST_TIMESTAMP

PER_CALL = 500
"""Share-partitions of one call to a leader."""
STRIP_RUNS_LIMIT = 2_000
POISON_LOOKED_AT_LIMIT = 20_000
"""Runs that one page of poison records looks at; the page ends there and says where to go on."""
POISON_PORTION = 100
"""Share-partitions that are read at once for it."""
PROBLEMS_LIMIT = 10
"""Problems of one page."""
NO_MORE = -1
STATE_NAMES = {
    RecordState.AVAILABLE: "Available",
    RecordState.ACQUIRED: "Acquired",
    RecordState.ACKNOWLEDGED: "Acknowledged",
    RecordState.ARCHIVING: "Archiving",
    RecordState.ARCHIVED: "Archived",
}
NOT_DONE = (RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVING)

Run = pb.DescribeSharePartitionsResponse.Run
Result = pb.DescribeSharePartitionsResponse.Result


@dataclass(slots=True)
class Reading:
    """One share-partition: what the cluster told, and what its leader has in memory."""

    offset: ShareOffset
    leader: str = ""
    """The RPC address of its live leader; empty without one."""
    result: Result = field(default_factory=Result)
    lock_duration_ms: int = 0
    first_offset: int = 0
    """Runs that end below it were not asked for."""
    problem: str = ""

    @property
    def has_all_runs(self) -> bool:
        return self.result.next_offset == NO_MORE or not self.result.is_loaded


class SharePartitions:
    """Reads share-partitions for one principal. `now_ms` is the wall clock."""

    def __init__(self, client: ClusterClient, roles: RoleCalls, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._roles = roles
        self._now_ms = now_ms

    async def page(self, group_id: str, asked: PageRequest) -> Json:
        """A page of the group's share-partitions with numbers; Refusal."""
        offsets = (await self._client.share_offsets([group_id])).get(group_id, [])
        found, next_key, total = page_of(_keyed(offsets), asked)
        readings = await self._read(group_id, found, without_runs=True)
        return listing([numbers(reading) for reading in readings], next_key, total)

    async def page_with_runs(
        self, group_id: str, offsets: Sequence[ShareOffset], asked: PageRequest
    ) -> tuple[Json, list[Reading]]:
        """The same, and the readings with as many runs as the leaders give in one answer."""
        found, next_key, total = page_of(_keyed(offsets), asked)
        readings = await self._read(group_id, found)
        return listing([numbers(reading) for reading in readings], next_key, total), readings

    async def reading(self, group_id: str, topic: str, partition: int, *, first_offset: int = 0) -> Reading:
        """One share-partition, with its runs from an offset on; Refusal."""
        offsets = (await self._client.share_offsets([group_id], topic=topic, partition=partition)).get(group_id, [])
        if not offsets:
            raise not_found(f"group {group_id} has no share-partition {topic}-{partition}")
        (found,) = await self._read(group_id, offsets[:1], first_offsets=[first_offset])
        if found.problem:
            raise Refusal(503, "UNAVAILABLE", found.problem)
        return found

    async def strip(self, group_id: str, topic: str, partition: int, *, first_offset: int = 0) -> Json:
        """The strip of one share-partition: its runs, with who holds them; Refusal."""
        reading, ends, members = await asyncio.gather(
            self.reading(group_id, topic, partition, first_offset=first_offset),
            self._client.end_offsets(topic, [partition], LATEST_TIMESTAMP),
            self._client.describe_group(group_id),
        )
        clients = {member.member_id: member.client_id for member in members.members}
        return strip(group_id, reading, ends.get(partition), clients, self._now_ms())

    async def poison(self, group_id: str, asked: PageRequest) -> Json:
        """Runs of records that were delivered more than once and are not done, by place; Refusal.

        `asked.after` is the key of a run. A page that looked at POISON_LOOKED_AT_LIMIT runs ends early. The page's
        `problems` say which share-partitions could not be read.
        """
        offsets, described = await asyncio.gather(
            self._client.share_offsets([group_id]), self._client.describe_group(group_id)
        )
        clients = {member.member_id: member.client_id for member in described.members}
        place, first_offset = _after(asked.after)
        wanted = [each for each in _keyed(offsets.get(group_id, [])) if each[0] >= place]
        found: list[Json] = []
        unread: dict[str, list[str]] = {}
        looked_at = 0
        for at in range(0, len(wanted), POISON_PORTION):
            portion = wanted[at : at + POISON_PORTION]
            start = first_offset if at == 0 and portion[0][0] == place else 0
            readings = await self._read(group_id, [one for _, one in portion], first_offsets=[start])
            for number, reading in enumerate(readings):
                async for part, following in self._all_runs(group_id, reading):
                    if part.problem:
                        unread.setdefault(part.problem, []).append(f"{part.offset.topic}-{part.offset.partition}")
                    runs = part.result.runs
                    looked_at += len(runs) + 1
                    found += [poison(part.offset, run, clients) for run in runs if _is_poison(run)]
                    if len(found) >= asked.limit or looked_at >= POISON_LOOKED_AT_LIMIT:
                        next_key = _key_after(wanted, at + number, following)
                        return {**listing(found, next_key, None), "problems": problems_of(unread)}
        return {**listing(found, None, None), "problems": problems_of(unread)}

    async def _all_runs(self, group_id: str, reading: Reading) -> AsyncIterator[tuple[Reading, int]]:
        """A reading and those of the runs that its answer left out, and where the next one begins."""
        while True:
            following = reading.result.next_offset if reading.result.is_loaded else NO_MORE
            yield reading, following
            if following == NO_MORE:
                return
            (reading,) = await self._read(group_id, [reading.offset], first_offsets=[following])

    async def _read(
        self,
        group_id: str,
        offsets: Sequence[ShareOffset],
        *,
        first_offsets: Sequence[int] = (),
        without_runs: bool = False,
    ) -> list[Reading]:
        """What the leaders have of share-partitions; a leader that does not answer is the reading's problem.

        Runs are read from `first_offsets` on, which may name the first share-partitions only.
        """
        readings = [Reading(each) for each in offsets]
        for reading, first_offset in zip(readings, first_offsets, strict=False):
            reading.first_offset = first_offset
        if not readings:
            return []
        placement = await self._roles.partitions(sorted({each.topic for each in offsets}))
        addresses = {each.node_id: each.rpc_address for each in placement.leaders if each.is_live}
        leaders = {
            (topic.name, one.partition): addresses.get(one.leader_node_id, "")
            for topic in placement.topics
            for one in topic.partitions
        }
        by_leader: dict[str, list[Reading]] = {}
        for reading in readings:
            reading.leader = leaders.get((reading.offset.topic, reading.offset.partition), "")
            if reading.leader:
                by_leader.setdefault(reading.leader, []).append(reading)
            else:
                reading.problem = "it has no live leader"
        await asyncio.gather(
            *(
                self._read_from(leader, group_id, of_leader[at : at + PER_CALL], without_runs)
                for leader, of_leader in by_leader.items()
                for at in range(0, len(of_leader), PER_CALL)
            )
        )
        return readings

    async def _read_from(self, leader: str, group_id: str, readings: Sequence[Reading], without_runs: bool) -> None:
        request = pb.DescribeSharePartitionsRequest(group_id=group_id, without_runs=without_runs)
        for reading in readings:
            request.partitions.add(
                topic_id=reading.offset.topic_id,
                partition=reading.offset.partition,
                first_offset=reading.first_offset,
            )
        try:
            answer = await self._roles.describe_share_partitions(leader, request)
        except Refusal as problem:
            for reading in readings:
                reading.problem = problem.words
            return
        for reading, result in zip(readings, answer.results, strict=True):
            reading.result, reading.lock_duration_ms = result, answer.lock_duration_ms
            reading.problem = result.error_message if result.error_code else ""


def _after(key: str) -> tuple[str, int]:
    """The place and the offset of a key of `poison`; Refusal."""
    if not key:
        return "", 0
    place, colon, offset = key.rpartition(":")
    if not colon or not (offset.isascii() and offset.isdigit() and len(offset) < 20):
        raise bad_request(f"after must be a key that an answer had in next, found {key[:100]!r}")
    return place, int(offset)


def _key_after(wanted: Sequence[tuple[str, ShareOffset]], number: int, following: int) -> str | None:
    """The key of where a page goes on: within the same share-partition, or at the next one; None after the last."""
    if following != NO_MORE:
        return f"{wanted[number][0]}:{following}"
    return f"{wanted[number + 1][0]}:0" if number + 1 < len(wanted) else None


def _keyed(offsets: Iterable[ShareOffset]) -> list[tuple[str, ShareOffset]]:
    return sorted((place_key(each.topic, each.partition), each) for each in offsets)


def held_by_member(readings: Iterable[Reading]) -> dict[str, int]:
    """Acquired records by member id."""
    found: dict[str, int] = {}
    for reading in readings:
        for run in reading.result.runs:
            if run.member_id:
                found[run.member_id] = found.get(run.member_id, 0) + run.last_offset - run.first_offset + 1
    return found


def numbers(reading: Reading) -> Json:
    """One row of the list; numbers are None where the leader did not tell."""
    result, one = reading.result, reading.offset
    is_told = not reading.problem
    done = result.delivery_complete_count
    return {
        "topic": one.topic,
        "partition": one.partition,
        "start_offset": result.start_offset if result.is_loaded else known(one.start_offset),
        "end_offset": result.end_offset if result.is_loaded else None,
        "lag_records": known(one.lag),
        "acquired": result.acquired_count if is_told else None,
        "available": result.available_count if is_told else None,
        "archiving": result.archiving_count if is_told else None,
        "done": done if is_told else None,
        "is_loaded": result.is_loaded,
        "leader": reading.leader or None,
        "oldest_acquired_ms": result.oldest_acquired_ms if is_told and result.acquired_count else None,
        "problem": reading.problem or None,
    }


def known(offset: int) -> int | None:
    return None if offset < 0 else offset


def strip(group_id: str, reading: Reading, log_end: int | None, clients: Mapping[str, str], now_ms: int) -> Json:
    """The JSON of one share-partition with its runs. Pure."""
    result, one = reading.result, reading.offset
    has_more = result.is_loaded and result.next_offset != NO_MORE
    return {
        "time_ms": now_ms,
        "group_id": group_id,
        "topic": one.topic,
        "partition": one.partition,
        "leader": reading.leader,
        "is_loaded": result.is_loaded,
        "state_epoch": result.state_epoch if result.is_loaded else None,
        "leader_epoch": result.leader_epoch,
        "start_offset": result.start_offset if result.is_loaded else known(one.start_offset),
        "end_offset": result.end_offset if result.is_loaded else None,
        "log_end_offset": log_end,
        "readable_end_offset": result.readable_end_offset if result.is_loaded else None,
        "lag_records": known(one.lag),
        "lock_duration_ms": reading.lock_duration_ms,
        "acquired": result.acquired_count,
        "available": result.available_count,
        "archiving": result.archiving_count,
        "done": result.delivery_complete_count,
        "runs": [_run(run, clients, reading.lock_duration_ms, now_ms) for run in result.runs],
        "next_offset": result.next_offset if has_more else None,
        "offsets_left_out": result.end_offset - result.next_offset if has_more else 0,
    }


def _run(run: Run, clients: Mapping[str, str], lock_duration_ms: int, now_ms: int) -> Json:
    is_held = run.delivery_state == RecordState.ACQUIRED
    return {
        "first_offset": run.first_offset,
        "last_offset": run.last_offset,
        "state": state_name(run.delivery_state),
        "next_state": state_name(run.next_delivery_state),
        "delivery_count": run.delivery_count,
        "member_id": run.member_id or None,
        "client_id": clients.get(run.member_id) if run.member_id else None,
        "acquired_ms": now_ms - max(0, lock_duration_ms - run.lock_remaining_ms) if is_held else None,
        "lock_ends_ms": now_ms + run.lock_remaining_ms if is_held else None,
    }


def state_name(number: int) -> str:
    return STATE_NAMES[RecordState(number)]


def problems_of(unread: Mapping[str, Sequence[str]]) -> list[Json]:
    """The problems of a page: why share-partitions could not be read, by problem. Pure."""
    found: list[Json] = []
    for problem, places in list(unread.items())[:PROBLEMS_LIMIT]:
        which = places[0] if len(places) == 1 else f"{len(places)} share-partitions, such as {places[0]},"
        found.append({"words": f"{which} could not be read: {problem}"})
    left_out = sum(map(len, list(unread.values())[PROBLEMS_LIMIT:]))
    return [*found, {"words": f"{left_out} more share-partitions could not be read"}] if left_out else found


def _is_poison(run: Run) -> bool:
    return run.delivery_count > 1 and run.delivery_state in NOT_DONE


def poison(one: ShareOffset, run: Run, clients: Mapping[str, str]) -> Json:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": run.first_offset,
        "last_offset": run.last_offset,
        "delivery_count": run.delivery_count,
        "state": state_name(run.delivery_state),
        "member_id": run.member_id or None,
        "client_id": clients.get(run.member_id) if run.member_id else None,
    }
