"""Share coordinators that fight for state partitions in an existing cluster, over an unreliable network.

Owners are named at random and are not told when they are replaced, so several write at once. They are paused in the
middle of a write; their requests are late, lost, refused or repeated. Whatever a client was told is in the state that a
fresh reader finds. Time is virtual; a seed decides everything.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset, apply
from kshare_share_coordinator.state_log.upstream import UpstreamStates
from kshare_upstream.fenced_log.owner import FencedLog
from kshare_upstream.port import UpstreamPartitionName
from support.share_coordinator.fighting_share_coordinators import Account, Catalog, Client, missing_in
from support.share_coordinator.states_on_upstream import create_state_topic, new_states, served
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream
from support.upstream.pausable_upstream import PausableUpstream
from support.upstream.unreliable_upstream import UnreliableUpstream, Weather

STATE_PARTITIONS = 2
NODES = 3
KEYS = [SharePartitionKey(group, bytes(range(1, 17)), number) for group in ("a", "b") for number in range(3)]
DURATION_S = 40.0
USUAL = Weather()
STORM = Weather(loss=0.2, refusal=0.2, long_delay=0.2)
CONFIGS = {
    "kshare.upstream.request.timeout.ms": "2000",
    "kshare.state.log.mark.interval.records": "100",
    "kshare.state.log.min.records": "1000",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
}


def problems(
    seed: int,
    kind: type[FencedLog] = FencedLog,
    *,
    weather: Weather = USUAL,
    duration_s: float = DURATION_S,
    longest_reign_s: float = 8.0,
) -> list[str]:
    """What was broken in the simulation of a seed."""
    account, cluster = Account(), MemoryUpstream()
    found: list[str] = []

    async def simulation() -> None:
        await create_state_topic(cluster, STATE_PARTITIONS)
        ways = [
            PausableUpstream(UnreliableUpstream(cluster, random.Random(f"{seed} {n}"), weather)) for n in range(NODES)
        ]
        nodes = [_node(way, number, seed, kind) for number, way in enumerate(ways)]
        clients = [Client(key, nodes, account, f"{seed} {key}") for key in KEYS]
        chance = random.Random(seed)
        catalog = Catalog(nodes, STATE_PARTITIONS, account, chance)
        tasks = [asyncio.create_task(client.live()) for client in clients]
        tasks.append(asyncio.create_task(catalog.live(longest_reign_s)))
        tasks += [
            asyncio.create_task(way.pause_at_random(random.Random(f"{seed} pause {n}"))) for n, way in enumerate(ways)
        ]
        done, _ = await asyncio.wait(tasks, timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found.extend(missing_in((await _fresh_reader(cluster, 1_000_000)).state, clients))

    loop = VirtualLoop(time_limit=3 * duration_s)
    loop.run(simulation())
    assert account.writes > 50 and account.reads and account.take_overs, f"nothing was done: {account}"
    return [*loop.problems, *account.problems, *found]


def _node(upstream: PausableUpstream, number: int, seed: int, kind: type[FencedLog]) -> UpstreamStates:
    states, _ = new_states(
        upstream, node_id=number, state_partitions=STATE_PARTITIONS, seed=seed, kind=kind, configs=CONFIGS
    )
    return states


class FreshReader:
    """A node that has read every state partition after everybody else."""

    def __init__(self, states: UpstreamStates) -> None:
        self._states = states

    def state(self, key: SharePartitionKey) -> ShareGroupOffset | None:
        state = None
        for record in self._states.load(key):
            state = apply(state, record)
        return state


async def _fresh_reader(cluster: MemoryUpstream, epoch: int) -> FreshReader:
    states, _ = new_states(cluster, node_id=99, state_partitions=STATE_PARTITIONS)
    for number in range(STATE_PARTITIONS):
        states.gain(number, epoch)
    for number in range(STATE_PARTITIONS):
        await served(states, number)
    return FreshReader(states)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_confirmed_stays(seed: int) -> None:
    assert problems(seed) == []


@pytest.mark.parametrize("seed", range(4))
def test_what_is_confirmed_stays_in_a_storm(seed: int) -> None:
    assert problems(seed, weather=STORM, duration_s=5 * DURATION_S) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_take_overs(seed: int) -> None:
    assert problems(seed, longest_reign_s=0.5) == []


class WithoutPositionCheck(FencedLog):
    """Confirms what the broker appended, wherever that is."""

    async def _check_position(self, base_offset: int) -> None:
        return


def test_an_owner_that_does_not_check_positions_is_found() -> None:
    assert any(problems(seed, WithoutPositionCheck) for seed in range(200))


@pytest.mark.parametrize("seed", range(20))
def test_what_an_unclean_election_drops_is_written_again(seed: int) -> None:
    """One owner, whose log loses its newest batches now and then."""
    account, cluster, chance = Account(), MemoryUpstream(), random.Random(seed)
    truncations = 0

    async def simulation() -> None:
        nonlocal truncations
        await create_state_topic(cluster, STATE_PARTITIONS)
        upstream = UnreliableUpstream(cluster, random.Random(f"{seed} way"), USUAL)
        owner = _node(PausableUpstream(upstream), 0, seed, FencedLog)
        for number in range(STATE_PARTITIONS):
            owner.gain(number, 1)
        clients = [Client(key, [owner], account, f"{seed} {key}") for key in KEYS]
        tasks = [asyncio.create_task(client.live()) for client in clients]
        for _ in range(12):
            await asyncio.sleep(chance.random() * 4)
            at = UpstreamPartitionName("__kshare_state", chance.randrange(STATE_PARTITIONS))
            truncations += cluster.lose_newest(at, chance.randint(1, 4))
        await asyncio.sleep(10)  # every log is written once more
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        account.problems += missing_in((await _fresh_reader(cluster, 1_000_000)).state, clients)

    loop = VirtualLoop(time_limit=300)
    loop.run(simulation())
    assert account.writes > 50 and truncations > 5
    assert [*loop.problems, *account.problems] == []
