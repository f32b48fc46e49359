"""Topics that an older catalog does not know: their records stay until they are named, or a newer copy is back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text
from kshare_leader.dead_letters.unfinished import UnfinishedDeadLetters
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import CONFIG, StrayTopics
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.reassignment.rows import PartitionRows
from kshare_rpc.catalog import CatalogStart, CatalogView
from kshare_runtime.checksummed_rows import ChecksummedRows, CorruptRow
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from support.leader.log.leader_logs import BROKER, NODE_ID, TOPIC, StillClock, topic, view_of
from support.wire.record_building import build_batch

CREATED_LATER = b"topic-0000000002"
BEFORE, COPIED = CatalogStart("before", 0), CatalogStart("copied", 20)
SEEN = 25
"""The version at which the leader has seen both topics."""


class Leader:
    """A leader's disk, its logs and what they reported."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.view = CatalogView()
        self.reports: list[str] = []
        self.registrations = 0

    def start(self, *deleted: bytes) -> None:
        """After a crash, where it ran before."""
        self.disk.crash()
        self.store: MemoryStore = self.disk.open_store("leader")
        self.reports.clear()
        strays = StrayTopics(self.store, report=self.reports.append, on_older=self._register_again)
        self.logs = PartitionLogs(
            store=self.store,
            clock=StillClock(),
            node_id=NODE_ID,
            configs=Configs(PROCESS_CONFIGS, {CONFIG: ",".join(map(topic_id_text, deleted))}),
            report=self.reports.append,
            strays=strays,
        )
        self.view = CatalogView()

    def _register_again(self) -> None:
        self.registrations += 1

    def register(self) -> None:
        """As the follower does: the next answer is the whole catalog."""
        self.view = replace(self.view, version=0)

    def see(self, *topics: bytes, version: int, starts: Sequence[CatalogStart]) -> None:
        new = view_of(*map(topic, topics), version=version, starts=starts)
        self.logs.on_view(self.view, new)
        self.view = new

    async def fill(self, *topics: bytes) -> None:
        for topic_id in topics:
            await self.logs.append(TopicPartition(topic_id, 0), memoryview(build_batch()))

    async def see_both(self) -> None:
        self.start()
        self.see(TOPIC, version=15, starts=[BEFORE, COPIED])
        self.see(TOPIC, CREATED_LATER, version=SEEN, starts=[BEFORE, COPIED])
        await self.fill(TOPIC, CREATED_LATER)

    def stored(self) -> set[bytes]:
        return {key[: len(TOPIC)] for family in keys.PARTITION_FAMILIES for key, _ in self.store.scan(family, b"")}


def older(version_at_restart: int) -> list[CatalogStart]:
    return [BEFORE, COPIED, CatalogStart("restored", version_at_restart)]


@pytest.mark.parametrize(
    ("starts", "version"),
    [
        ([BEFORE, COPIED], SEEN - 1),
        (older(SEEN - 1), SEEN - 1),
        (older(SEEN - 1), SEEN + 10),
        ([BEFORE, CatalogStart("restored", 20)], SEEN + 10),
    ],
    ids=["fewer versions", "a copy", "a copy that has counted on", "a copy of before the start"],
)
def test_an_older_catalog_removes_nothing(starts: Sequence[CatalogStart], version: int) -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.start()
        leader.see(TOPIC, version=version, starts=starts)
        for later in range(2):
            assert leader.stored() == {TOPIC, CREATED_LATER}
            (warning,) = leader.reports
            assert topic_id_text(CREATED_LATER) in warning and CONFIG in warning
            leader.start()  # the older catalog goes on, and is not older than this leader any more
            leader.see(TOPIC, version=version + later, starts=[*starts, CatalogStart("next", version)])

    asyncio.run(test())


@pytest.mark.parametrize(
    ("starts", "version"),
    [([BEFORE, COPIED], SEEN + 1), (older(SEEN), SEEN + 1), ([], SEEN + 1)],
    ids=["the same start", "a later start", "a coordinator of an older version"],
)
def test_a_topic_that_a_newer_catalog_does_not_have_is_removed(starts: Sequence[CatalogStart], version: int) -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.start()
        leader.see(TOPIC, version=version, starts=starts)
        name = topic_id_text(CREATED_LATER)
        assert leader.stored() == {TOPIC}
        assert leader.reports == [f"removing the records of topic {name}, which no longer exists"]

    asyncio.run(test())


def test_a_stray_topic_is_removed_when_it_is_named_and_only_it() -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.start(TOPIC)
        leader.see(TOPIC, version=21, starts=older(20))
        assert leader.stored() == {TOPIC, CREATED_LATER}, "the catalog knows the named one"
        leader.start(CREATED_LATER)
        leader.see(TOPIC, version=21, starts=older(20))
        assert leader.stored() == {TOPIC}
        leader.start()
        leader.see(TOPIC, version=21, starts=older(20))
        assert leader.reports == []

    asyncio.run(test())


def test_a_stray_topic_is_served_again_by_a_newer_copy_and_deleted_as_any_other() -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.start()
        leader.see(TOPIC, version=21, starts=older(20))
        newer = [BEFORE, COPIED, CatalogStart("newer", SEEN)]
        leader.start()
        leader.see(TOPIC, CREATED_LATER, version=SEEN + 1, starts=newer)
        log = leader.logs.find(TopicPartition(CREATED_LATER, 0))
        assert log is not None and log.high_watermark == 1
        assert leader.reports == []
        await leader.fill(TOPIC)
        leader.start()
        leader.see(TOPIC, version=SEEN + 2, starts=newer)
        assert leader.stored() == {TOPIC}

    asyncio.run(test())


def test_a_leader_that_runs_when_the_coordinator_is_replaced_registers_again() -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.see(TOPIC, version=SEEN + 3, starts=older(20))
        assert leader.stored() == {TOPIC, CREATED_LATER} and leader.registrations == 1
        leader.register()
        leader.see(TOPIC, version=SEEN + 4, starts=older(20))
        assert leader.stored() == {TOPIC, CREATED_LATER} and leader.registrations == 1

    asyncio.run(test())


def test_a_mark_that_could_not_be_written_is_written_with_the_next_append() -> None:
    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.start()
        leader.disk.fail_next_writes(1, "No space left on device")
        leader.see(TOPIC, version=21, starts=older(20))
        await leader.fill(TOPIC)
        leader.start()
        leader.see(TOPIC, version=22, starts=older(20))
        assert leader.stored() == {TOPIC, CREATED_LATER}

    asyncio.run(test())


def test_the_position_is_stored_before_a_partition_is_copied() -> None:
    leader = Leader()
    leader.start()
    strays = StrayTopics(leader.store)
    strays.follow(CatalogView(), view_of(version=15, starts=[BEFORE, COPIED]))
    strays.follow(view_of(version=15), view_of(version=SEEN, starts=[BEFORE, COPIED]))
    rows = PartitionRows(leader.store, strays=strays)
    copied = TopicPartition(CREATED_LATER, 0)
    rows.set_mark(copied, 7)
    leader.store.write([Write(keys.LOG, keys.long_key(keys.partition_prefix(copied), 0), b"")])
    leader.start()
    leader.see(version=21, starts=older(20))
    assert leader.stored() == {CREATED_LATER}


def test_an_older_catalog_that_counted_past_this_leader_gives_its_changes_first_and_costs_no_topic() -> None:
    """The coordinator answers a version that it has too with the changes since; those before it are of another copy."""

    async def test() -> None:
        leader = Leader()
        await leader.see_both()
        leader.see(TOPIC, CREATED_LATER, version=SEEN + 3, starts=older(20))
        assert leader.registrations == 1
        leader.register()
        leader.see(TOPIC, version=SEEN + 4, starts=older(20))
        assert leader.stored() == {TOPIC, CREATED_LATER} and leader.registrations == 1
        assert topic_id_text(CREATED_LATER) in leader.reports[-1] and CONFIG in leader.reports[-1]

    asyncio.run(test())


def test_damaged_rows_do_not_hide_what_the_keys_of_others_tell() -> None:
    below = MemoryDisk().open_store("leader")
    store = ChecksummedRows(below, plain_families=[keys.LOG])
    place = TopicPartition(TOPIC, 0)
    letters = [SharePartitionKey(group_id, TOPIC, 0) for group_id in ("a", "b")]
    for letter in letters:
        UnfinishedDeadLetters(store).remember(letter)
    epochs = [keys.long_key(keys.partition_prefix(place), epoch) for epoch in (3, 7)]
    store.write([Write(keys.LEADER_EPOCHS, row, b"an offset") for row in epochs])
    reassigned = [TopicPartition(TOPIC, number) for number in (1, 2)]
    for partition in reassigned:
        PartitionRows(store).set_mark(partition, 5)
    for family in (keys.UNFINISHED_DEAD_LETTERS, keys.LEADER_EPOCHS, keys.META):
        row, stored = next(iter(below.scan(family, b"")))
        below.write([Write(family, row, stored[:-1] + bytes([stored[-1] ^ 1]))])
    reports: list[str] = []
    assert UnfinishedDeadLetters(store, rows=below).share_partitions() == letters
    logs = PartitionLogs(store=store, clock=StillClock(), node_id=1, configs=BROKER, rows=below)
    assert logs.highest_leader_epoch() == 7
    rows = PartitionRows(store, rows=below, report=reports.append)
    assert rows.marked() == reassigned[1:] and rows.mark(reassigned[1]) == 5
    rows.discard_unfinished_copy(reassigned[0], given_up_epoch=0)
    for refused in (rows.mark, lambda key: rows.discard_unfinished_copy(key, given_up_epoch=6)):
        with pytest.raises(CorruptRow):
            refused(reassigned[0])
    rows.set_mark(reassigned[0], 9)
    assert rows.mark(reassigned[0]) == 9, "a new mark takes the place of the damaged one"
    assert len(reports) == 1 and "wrong checksum" in reports[0]


def test_a_damaged_row_does_not_keep_the_records_of_deleted_topics() -> None:
    """One was deleted while the leader registered again, one while it was away."""
    below = MemoryDisk().open_store("leader")
    store = ChecksummedRows(below, plain_families=[keys.LOG])
    for topic_id in (TOPIC, CREATED_LATER):
        row = keys.long_key(keys.partition_prefix(TopicPartition(topic_id, 0)), 0)
        store.write([Write(keys.LOG, row, b"batch"), Write(keys.PRODUCERS, row, b"an entry")])
        stored = below.get(keys.PRODUCERS, row)
        assert stored is not None
        below.write([Write(keys.PRODUCERS, row, stored[:-1] + b"?")])
    known, gone = view_of(topic(TOPIC), version=SEEN), view_of(topic(TOPIC), version=SEEN + 1)
    before = view_of(topic(TOPIC), topic(CREATED_LATER), version=0)
    for old, new in ((before, known), (CatalogView(), gone)):
        assert StrayTopics(store, rows=below).follow(old, new) == [CREATED_LATER]
