"""The records that members have held for the longest time, of all groups: where a person looks for stuck workers.

Leaders tell for each group the share-partition with its oldest acquisition lock. Of the OLDEST_LIMIT oldest ones the
runs are read, so a reading costs a few requests however many share-partitions there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from kshare_console.refusal import Refusal
from kshare_console.role_calls import RoleCalls
from kshare_console.views.paging import Json
from kshare_console.views.rates import Totals
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2 as pb

OLDEST_LIMIT = 5
"""Share-partitions that are looked at, and runs that are shown."""

TopicNames = Mapping[str, Mapping[bytes, str]]
"""By group the topics, by id, that the principal may describe."""


class OldestLock(NamedTuple):
    """A group's oldest acquisition lock at one leader."""

    held_ms: int
    leader: str
    group_id: str
    topic_id: bytes
    partition: int


def oldest_locks(answers: Mapping[str, Totals | str], topics: TopicNames) -> list[OldestLock]:
    """The oldest locks of all leaders, the oldest first; those of groups and topics in `topics`."""
    found = [
        OldestLock(group.oldest_acquired_ms, leader, group.group_id, group.oldest_topic_id, group.oldest_partition)
        for leader, totals in answers.items()
        if isinstance(totals, Totals)
        for group in totals.groups
        if group.oldest_acquired_ms and group.oldest_topic_id in topics.get(group.group_id, {})
    ]
    return sorted(found, reverse=True)[:OLDEST_LIMIT]


async def oldest_acquired(
    roles: RoleCalls, locks: list[OldestLock], topics: TopicNames, clients: Mapping[str, str], now_ms: int
) -> tuple[Json, ...]:
    """The acquired runs behind these locks, those held longest first; `clients` are client ids by member id."""

    async def read(lock: OldestLock) -> list[tuple[int, Json]]:
        request = pb.DescribeSharePartitionsRequest(group_id=lock.group_id)
        request.partitions.add(topic_id=lock.topic_id, partition=lock.partition)
        try:
            answer = await roles.describe_share_partitions(lock.leader, request)
        except Refusal:
            return []  # the roles say why the leader does not answer
        return acquired_runs(lock, topics[lock.group_id][lock.topic_id], answer, clients, now_ms)

    runs = [run for found in await asyncio.gather(*map(read, locks)) for run in found]
    return tuple(run for _, run in sorted(runs, key=lambda each: each[0])[:OLDEST_LIMIT])


def acquired_runs(
    lock: OldestLock,
    topic: str,
    answer: pb.DescribeSharePartitionsResponse,
    clients: Mapping[str, str],
    now_ms: int,
) -> list[tuple[int, Json]]:
    """The acquired runs of a share-partition, each after the time of its acquisition."""
    found: list[tuple[int, Json]] = []
    for run in (run for result in answer.results for run in result.runs):
        if run.delivery_state != RecordState.ACQUIRED:
            continue
        acquired_ms = now_ms - max(0, answer.lock_duration_ms - run.lock_remaining_ms)
        shown: Json = {
            "group_id": lock.group_id,
            "topic": topic,
            "partition": lock.partition,
            "first_offset": run.first_offset,
            "last_offset": run.last_offset,
            "delivery_count": run.delivery_count,
            "member_id": run.member_id or None,
            "client_id": clients.get(run.member_id),
            "acquired_ms": acquired_ms,
        }
        found.append((acquired_ms, shown))
    return found
