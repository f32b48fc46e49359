"""Planted bugs that stop what works for a while: all is delivered in the end, and only `rules.liveness` finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kshare_gateway.share.answers import LeaderAnswer
from kshare_gateway.share.fetching import ShareFetcher
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import NO_WRITE
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.share.served_partition import ServedPartition
from support.simulation.mutations.mutation import Mutation, Patch
from support.simulation.mutations.planted_bug import (
    Focus,
    PlantedBug,
    at_least,
    few_members_with_short_locks,
    often,
    only_faults,
    three_partitions,
)

STOPS_FOR_S = 40.0

Expire = Callable[[SharePartition, int, GroupLimits], int]
FirstRecords = Callable[..., Awaitable[list[LeaderAnswer]]]


class _StopsAfterLockTimeouts:
    """A leader acquires nothing of a share-partition for a while after a lock has run out there."""

    def __init__(self) -> None:
        self._stopped_until: dict[SharePartition, float] = {}

    def mutation(self) -> Mutation:
        return Mutation(
            patches=(
                Patch(SharePartition, "expire", self._expire),
                Patch(ServedPartition, "is_lagging", self._is_lagging),
            )
        )

    def _expire(self, expire: Expire) -> Expire:
        def changed(machine: SharePartition, now_ms: int, limits: GroupLimits) -> int:
            write_id = expire(machine, now_ms, limits)
            if write_id != NO_WRITE:
                self._stopped_until[machine] = asyncio.get_running_loop().time() + STOPS_FOR_S
            return write_id

        return changed

    def _is_lagging(self, is_lagging: property) -> property:
        def changed(served: ServedPartition) -> bool:
            machine = served.machine
            is_stopped = machine is not None and asyncio.get_running_loop().time() < self._stopped_until.get(machine, 0)
            return is_stopped or bool(is_lagging.__get__(served))

        return property(changed)


class _StopsAfterASilentLeader:
    """A gateway asks no leader for a while after one of several did not answer."""

    def __init__(self) -> None:
        self._stopped_until: dict[ShareFetcher, float] = {}

    def mutation(self) -> Mutation:
        return Mutation(patches=(Patch(ShareFetcher, "_first_records", self._first_records),))

    def _first_records(self, first_records: FirstRecords) -> FirstRecords:
        async def changed(
            fetcher: ShareFetcher, session: Any, calls: Any, fetch: Any, terms: Any, *, wait: bool, is_first: bool
        ) -> list[LeaderAnswer]:
            loop = asyncio.get_running_loop()
            if loop.time() < self._stopped_until.get(fetcher, 0.0):
                await asyncio.sleep(terms.max_wait_ms / 1000)
                return []
            answers = await first_records(fetcher, session, calls, fetch, terms, wait=wait, is_first=is_first)
            if any(answer.unavailable for answer in answers):
                self._stopped_until[fetcher] = loop.time() + STOPS_FOR_S
            return answers

        return changed


RULES = ("nothing was delivered",)
FEW_FAULTS = only_faults("crash", "pause", "long-pause", count=3)
"""So few that much of the time is left in which nothing disturbs a share-partition."""

PLANTED = (
    PlantedBug(
        name="a share-partition stands still for 40 s after a lock has run out there",
        mutation=lambda: _StopsAfterLockTimeouts().mutation(),
        rules=RULES,
        focus=Focus(
            "groups of two, short locks, missing acknowledgements often, few crashes and pauses",
            (few_members_with_short_locks, often("missing acknowledgements"), FEW_FAULTS),
        ),
        seed=1,
    ),
    PlantedBug(
        name="a gateway asks no leader for 40 s after one of several did not answer",
        mutation=lambda: _StopsAfterASilentLeader().mutation(),
        rules=RULES,
        focus=Focus(
            "three leaders and partitions, groups of two, few crashes and pauses",
            (at_least(leaders=3), few_members_with_short_locks, three_partitions, FEW_FAULTS),
        ),
        seed=1,
    ),
)
