"""The port of state logs over RocksDB's rows in memory, the cluster in memory, and Apache Kafka 3.9.1."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment
from kshare_share_coordinator.machine.share_group_offset import Record, ShareSnapshot, ShareTombstone, ShareUpdate
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.metrics import StateMetrics
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_log.embedded import EmbeddedStates
from kshare_share_coordinator.state_log.port import Found, StateEngine
from support.share_coordinator.states_on_upstream import CLUSTER_ID, LoopClock, create_state_topic, new_states, served
from support.upstream.opened import IN_MEMORY, opened

EMBEDDED = "embedded"
KEYS = [SharePartitionKey("orders", bytes(range(1, 17)), number) for number in range(12)]

Open = Callable[[int], Awaitable[StateEngine]]
"""Opens the log as the process with this epoch, which is its only owner."""


@pytest.fixture(params=[EMBEDDED, "memory", "kafka"])
def place(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka"))
    return EMBEDDED if request.param == EMBEDDED else IN_MEMORY


def run(place: str, body: Callable[[Open], Awaitable[None]]) -> None:
    async def with_log() -> None:
        async with _opener(place) as open_log:
            await body(open_log)

    asyncio.run(with_log())


@asynccontextmanager
async def _opener(place: str) -> AsyncIterator[Open]:
    if place == EMBEDDED:
        disk = MemoryDisk()

        open_stores: list[EmbeddedStates] = []

        async def open_embedded(epoch: int) -> StateEngine:
            for former in open_stores:
                former.store.close()
            open_stores[:] = [_embedded(disk)]
            return open_stores[0]

        yield open_embedded
        return
    async with opened(place) as upstream:
        prefix = f"test-{uuid4().hex}-"
        await create_state_topic(upstream, topic=f"{prefix}state")

        async def open_upstream(epoch: int) -> StateEngine:
            states, _ = new_states(upstream, node_id=epoch, configs={"kshare.upstream.topic.prefix": prefix})
            states.gain(0, epoch)
            await served(states)
            return states

        yield open_upstream


def _embedded(disk: MemoryDisk) -> EmbeddedStates:
    follower = CatalogFollower(network=InProcessNetwork(), coordinator_address="coordinator:1")
    follower.view = CatalogView(version=1, cluster_id=CLUSTER_ID, state_partition_count=1)
    states = EmbeddedStates(
        environment=Environment(clock=LoopClock(), random=random.Random(1), open_store=disk.open_store),
        follower=follower,
        settings=ShareCoordinatorSettings(
            node_id=1, listen="127.0.0.1:0", coordinator_address="coordinator:1", configs=Configs(PROCESS_CONFIGS)
        ),
        metrics=StateMetrics(),
        move_metrics=MoveMetrics(lambda: 1),
    )
    assert states.ownership.identity_problem() is None
    states.gain(0, 1)
    return states


def snapshot(key: SharePartitionKey = KEYS[0], epoch: int = 0, superseded: int = 0) -> ShareSnapshot:
    batches = [StateBatch(5, 9, 2, 1), StateBatch(20, 20, 0, 3)]
    return ShareSnapshot(key, epoch, 1, 2, 5, 3, 1_000, 2_000, batches, superseded)


def update(number: int, key: SharePartitionKey = KEYS[0], epoch: int = 0) -> ShareUpdate:
    return ShareUpdate(key, number, epoch, 2, -1, 4, [StateBatch(100 * number, 100 * number, 4, 2)])


async def append(log: StateEngine, *records: Record) -> None:
    waiting = log.append(records)
    if waiting is not None:
        await waiting


def as_stored(*records: Record) -> list[Record]:
    """Without what the records of Kafka do not carry."""
    return [each._replace(superseded_update_count=0) if isinstance(each, ShareSnapshot) else each for each in records]


def test_what_was_appended_is_loaded_also_after_a_restart(place: str) -> None:
    async def body(open_log: Open) -> None:
        log = await open_log(1)
        assert list(log.load(KEYS[0])) == []
        await append(log, snapshot(), update(1), snapshot(KEYS[1]))
        await append(log, update(2))
        expected = as_stored(snapshot(), update(1), update(2))
        assert list(log.load(KEYS[0])) == expected
        again = await open_log(2)
        assert [list(again.load(key)) for key in KEYS[:2]] == [expected, as_stored(snapshot(KEYS[1]))]

    run(place, body)


def test_a_snapshot_supersedes_what_was_before_it(place: str) -> None:
    async def body(open_log: Open) -> None:
        log = await open_log(1)
        await append(log, snapshot(), update(1), update(2))
        await append(log, snapshot(epoch=1, superseded=2), update(1, epoch=1))
        expected = as_stored(snapshot(epoch=1), update(1, epoch=1))
        assert list(log.load(KEYS[0])) == expected
        assert list((await open_log(2)).load(KEYS[0])) == expected

    run(place, body)


def test_a_tombstone_ends_a_state(place: str) -> None:
    async def body(open_log: Open) -> None:
        log = await open_log(1)
        await append(log, snapshot(), update(1))
        await append(log, ShareTombstone(KEYS[0], 1))
        assert list(log.load(KEYS[0])) == []
        await append(log, snapshot(epoch=7))
        again = await open_log(2)
        assert list(again.load(KEYS[0])) == as_stored(snapshot(epoch=7))
        await append(again, ShareTombstone(KEYS[0], 0))
        assert list((await open_log(3)).load(KEYS[0])) == []

    run(place, body)


def test_all_share_partitions_are_listed_once_page_by_page(place: str) -> None:
    async def body(open_log: Open) -> None:
        log = await open_log(1)
        await append(log, *[snapshot(key) for key in reversed(KEYS)], update(1, KEYS[3]), update(2, KEYS[3]))
        found: list[Found] = []
        position, pages = b"", 0
        while True:
            page, following = log.share_partitions(0, position, 3)
            found += page
            pages += 1
            if following is None:
                break
            position = following
        assert [each.key for each in found] == KEYS
        assert [len(each.records) for each in found] == [3 if key == KEYS[3] else 1 for key in KEYS]
        assert pages == 5, "a page has three records, or those of one share-partition more"

    run(place, body)
