"""The removal of deleted topics' records: how many writes and turns it takes, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.log.deleted_topics.topic_removal import REMOVAL_PAUSE_MS, TOPICS_REMOVED_IN_A_TURN
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.catalog import CatalogStart, CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_runtime.large_values.store import ValueFileStore
from kshare_runtime.memory_store import DiskEvents, MemoryDisk
from kshare_runtime.ports import AppendedWrite, Write
from support.leader.log.leader_logs import BROKER, NODE_ID, TOPIC, StillClock, topic, view_of
from support.runtime.unreadable_store import UnreadableStore
from support.simulation.loop import VirtualLoop

COUNT = 5 * TOPICS_REMOVED_IN_A_TURN
DELETED = [b"deleted-%08d" % number for number in range(COUNT)]
START = CatalogStart("start", 0)


class Writes(DiskEvents):
    """Counts writes."""

    def __init__(self) -> None:
        self.count = 0

    def write_begins(self) -> None:
        self.count += 1


class Leader:
    """A leader with the rows of some topics on its disk, and its logs."""

    def __init__(self, *stored: bytes) -> None:
        self.disk = MemoryDisk()
        self.store = self.disk.open_store("leader")
        for topic_id in stored:
            prefix = keys.partition_prefix(TopicPartition(topic_id, 0))
            self.store.write([Write(family, prefix + b"a row", b"") for family in keys.PARTITION_FAMILIES[1:]])
        self.reports: list[str] = []
        self.logs = PartitionLogs(
            store=self.store,
            clock=StillClock(),
            node_id=NODE_ID,
            configs=BROKER,
            report=self.reports.append,
            strays=StrayTopics(self.store, report=self.reports.append),
        )
        self.view = CatalogView()
        self.writes = Writes()
        self.disk.events = self.writes

    def see(
        self, *topics: bytes, version: int, cluster_id: str = "cluster", starts: Sequence[CatalogStart] = (START,)
    ) -> None:
        new = view_of(*map(elsewhere, topics), version=version, cluster_id=cluster_id, starts=starts)
        self.logs.on_view(self.view, new)
        self.view = new

    def stored(self) -> list[bytes]:
        found = [key[: len(TOPIC)] for family in keys.PARTITION_FAMILIES for key, _ in self.store.scan(family, b"")]
        return sorted(dict.fromkeys(found))


def elsewhere(topic_id: bytes) -> coordinator_pb2.Topic:
    """A topic that another node leads now."""
    return topic(topic_id, leaders=(NODE_ID + 1,))


async def pauses(count: float) -> None:
    """Lets that many pauses of a removal pass, in virtual time."""
    await asyncio.sleep(count * REMOVAL_PAUSE_MS / 1000)


def test_hundreds_of_deleted_topics_are_removed_in_turns_of_one_write_each() -> None:
    async def test() -> None:
        leader = Leader(*DELETED, TOPIC)
        leader.see(*DELETED, TOPIC, version=1)
        leader.writes.count = 0
        leader.see(TOPIC, version=2)
        left = []
        await pauses(0.5)
        for turn in range(1, COUNT // TOPICS_REMOVED_IN_A_TURN + 1):
            left.append(len(leader.stored()) - 1)
            assert leader.writes.count == turn
            assert leader.logs.problems() == [], "topics that wait for their turn are no problem"
            await pauses(1)
        assert left == [COUNT - TOPICS_REMOVED_IN_A_TURN * turn for turn in range(1, len(left) + 1)]
        assert leader.stored() == [TOPIC] and leader.writes.count == len(left)

    VirtualLoop().run(test())


def test_a_leader_without_rows_of_the_deleted_topics_writes_nothing() -> None:
    async def test() -> None:
        leader = Leader(TOPIC)
        leader.see(*DELETED, TOPIC, version=1)
        leader.writes.count = 0
        leader.see(TOPIC, version=2)
        await pauses(COUNT // TOPICS_REMOVED_IN_A_TURN)
        assert leader.writes.count == 0 and leader.stored() == [TOPIC]

    VirtualLoop().run(test())


def test_a_disk_that_refuses_writes_is_no_failure_where_nothing_is_to_be_removed() -> None:
    async def test() -> None:
        disk = MemoryDisk(needs_mending=True)
        files = disk.open_folder("leader")
        prefix_bytes = keys.PARTITION_PREFIX_BYTES
        store = ValueFileStore(
            disk.open_store("leader"), files, family=keys.LOG, prefix_bytes=prefix_bytes, from_bytes=1
        )
        logs = PartitionLogs(store=store, clock=StillClock(), node_id=NODE_ID, configs=BROKER)
        old, new = view_of(elsewhere(TOPIC)), view_of(version=2)
        logs.on_view(CatalogView(), old)
        disk.is_full = True
        row = keys.long_key(keys.partition_prefix(TopicPartition(b"another-00000001", 0)), 0)
        with pytest.raises(StorageFailure):
            store.write([AppendedWrite(keys.LOG, row, b"a batch")])
        logs.on_view(old, old)
        logs.on_view(old, new)
        assert logs.problems() == [] and store.write_failure is not None

    VirtualLoop().run(test())


def test_topics_that_wait_are_removed_at_the_next_start() -> None:
    async def test() -> None:
        leader = Leader(*DELETED, TOPIC)
        leader.see(*DELETED, TOPIC, version=1)
        leader.see(TOPIC, version=2)
        leader.logs.close()
        await pauses(COUNT)
        assert len(leader.stored()) == COUNT - TOPICS_REMOVED_IN_A_TURN + 1, "a closed leader writes nothing"
        leader.logs = PartitionLogs(store=leader.store, clock=StillClock(), node_id=NODE_ID, configs=BROKER)
        leader.view = CatalogView()
        leader.see(TOPIC, version=2)
        await pauses(COUNT // TOPICS_REMOVED_IN_A_TURN)
        assert leader.stored() == [TOPIC]

    VirtualLoop().run(test())


def test_a_catalog_of_another_cluster_ends_a_removal_until_its_own_is_back() -> None:
    async def test() -> None:
        leader = Leader(*DELETED)
        leader.see(*DELETED, version=1)
        leader.see(version=2)
        left = leader.stored()
        leader.see(version=3, cluster_id="another")
        leader.logs.store_mended()
        await leader.logs.retry_and_expire()
        await pauses(COUNT)
        assert leader.stored() == left and left
        leader.see(version=4)
        await pauses(COUNT // TOPICS_REMOVED_IN_A_TURN)
        assert leader.stored() == []

    VirtualLoop().run(test())


@pytest.mark.parametrize("is_known", [True, False])
def test_what_an_older_catalog_brings_back_or_does_not_know_is_not_removed_any_more(is_known: bool) -> None:
    """The topic was deleted, and waits for a disk that takes writes, when the coordinator is restored from a copy."""

    async def test() -> None:
        leader = Leader(TOPIC)
        leader.see(TOPIC, version=5)
        leader.disk.fail_next_writes(1)
        leader.see(version=6)
        assert "are not removed" in leader.logs.problems()[0]
        restored = (START, CatalogStart("restored", 3))
        leader.see(version=4, starts=restored)
        assert leader.stored() == [TOPIC], "these are only the changes since a version that both have"
        leader.view = CatalogView()  # registered again: the next answer is the whole catalog
        leader.see(*[TOPIC] * is_known, version=4, starts=restored)
        leader.logs.store_mended()
        assert leader.stored() == [TOPIC] and leader.logs.problems() == []

    VirtualLoop().run(test())


def test_rows_that_cannot_be_read_are_removed() -> None:
    async def test() -> None:
        leader = Leader()
        below = leader.store
        store = UnreadableStore(below)
        logs = PartitionLogs(store=store, clock=StillClock(), node_id=NODE_ID, configs=BROKER)
        old, new = view_of(elsewhere(TOPIC)), view_of(version=2)
        logs.on_view(CatalogView(), old)
        below.write([Write(keys.PRODUCERS, keys.partition_prefix(TopicPartition(TOPIC, 0)), b"")])
        store.failing_reads = len(keys.PARTITION_FAMILIES)
        logs.on_view(old, new)
        assert store.failing_reads == 0 and leader.stored() == [] and logs.problems() == []

    VirtualLoop().run(test())
