"""Owners that fight for one log over an unreliable network: nothing that was confirmed is lost, whoever reads the log.

Each owner appends numbers, and at times a snapshot of all numbers it knows, behind which it prunes. A referee reads the
whole history of the log, pruned parts as well. Time is virtual; a seed decides delays, losses and take-overs.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from kshare_upstream.fenced_log.owner import FencedLog
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import UpstreamPartitionName
from kshare_upstream.topics import create_topic
from support.simulation.loop import VirtualLoop
from support.upstream.fighting_owners import Account, Owner, broken_rules, referee
from support.upstream.memory_upstream import MemoryUpstream
from support.upstream.unreliable_upstream import UnreliableUpstream, Weather

AT = UpstreamPartitionName("state", 0)
OWNERS = 4
DURATION_S = 60.0
USUAL = Weather()
STORM = Weather(loss=0.25, refusal=0.25, long_delay=0.25)
DEADLINE_MS = 2_000


def problems(
    seed: int, kind: type[FencedLog] = FencedLog, weather: Weather = USUAL, duration_s: float = DURATION_S
) -> list[str]:
    """What was broken in the simulation of a seed."""
    account, cluster = Account(), MemoryUpstream()

    async def simulation() -> None:
        loop = asyncio.get_running_loop()
        await create_topic(cluster, AT.topic, partitions=1, replicas=1, configs={})
        owners = []
        for node_id in range(OWNERS):
            chance = random.Random(f"{seed} {node_id}")
            upstream = UnreliableUpstream(cluster, chance, weather)
            log = kind(
                upstream,
                PartitionLog(upstream, AT, deadline_ms=DEADLINE_MS),
                max_batch_bytes=1 << 20,
                now_ms=lambda: int(loop.time() * 1000),
            )
            owners.append(asyncio.create_task(Owner(log, node_id, account, chance).live()))
        done, _ = await asyncio.wait(owners, timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    loop = VirtualLoop(time_limit=2 * duration_s)
    loop.run(simulation())
    return [*loop.problems, *broken_rules(account, referee(cluster.logs[AT].history))]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_confirmed_stays(seed: int) -> None:
    assert problems(seed) == []


@pytest.mark.parametrize("seed", range(5))
def test_what_is_confirmed_stays_in_a_storm(seed: int) -> None:
    assert problems(seed, weather=STORM, duration_s=20 * DURATION_S) == []


class WithoutPositionCheck(FencedLog):
    """Confirms what the broker appended, wherever that is."""

    async def _check_position(self, base_offset: int) -> None:
        return


def test_an_owner_that_does_not_check_positions_is_found() -> None:
    assert any(problems(seed, WithoutPositionCheck) for seed in range(200))
