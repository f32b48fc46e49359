"""What a view of the catalog means for the logs, the share-partitions' reminders and the marked rows of a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.unfinished import UnfinishedDeadLetters
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.reassignment.partition_reassignments import COPIES_AT_ONCE, PartitionReassignments
from kshare_leader.reassignment.rows import PartitionRows
from kshare_rpc.catalog import CatalogStart, CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.reassignment.copy_loop import FAILURES_BEFORE_PROBLEM
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from support.leader.log.leader_logs import KEY, NODE_ID, TOPIC, open_logs, topic, view_of
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

OTHER = 2
MARK = 5


def view_with(
    *,
    leader: int,
    placement_epoch: int = MARK - 1,
    moving_to: int | None = None,
    is_fenced: bool = False,
    version: int = 2,
    partitions: int = 1,
) -> CatalogView:
    found = topic(leaders=(leader,) * partitions)
    for partition in found.partitions:
        partition.placement_epoch = placement_epoch
        if moving_to is not None:
            partition.is_moving, partition.moving_to_node_id = True, moving_to
            partition.move_epoch, partition.is_fenced = MARK, is_fenced
    return view_of(found, version=version)


# Logs


def test_a_fenced_log_is_closed_and_opened_again_where_the_move_is_taken_back() -> None:
    async def main() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(NODE_ID,)))
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == 0
        first = view_of(topic(leaders=(NODE_ID,)))
        moving, fenced = (
            view_with(leader=NODE_ID, moving_to=OTHER, is_fenced=is_fenced) for is_fenced in (False, True)
        )
        logs.on_view(first, moving)
        log = logs.find(KEY)
        assert log is not None and log.is_moving
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == 1
        late = logs.append(KEY, memoryview(build_batch()))
        logs.on_view(moving, fenced)
        with pytest.raises(KafkaError) as refusal:
            await late
        assert refusal.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "what waited for the disk is not written"
        assert log.is_closed and logs.find(KEY) is None and logs.end_offset(KEY) == -1
        with pytest.raises(KafkaError, match="moving away"):
            logs.lookup(KEY)
        logs.on_view(fenced, view_with(leader=NODE_ID, placement_epoch=MARK + 1, version=3))
        again = logs.find(KEY)
        assert again is not None and not again.is_moving and again.high_watermark == 2

    asyncio.run(main())


def test_a_partition_that_is_on_its_way_here_has_no_log_yet() -> None:
    logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(OTHER,)))
    logs.on_view(view_of(topic(leaders=(OTHER,))), view_with(leader=OTHER, moving_to=NODE_ID, is_fenced=True))
    assert logs.find(KEY) is None


# Reminders of dead letters


def test_reminders_come_and_go_with_the_rows() -> None:
    store = MemoryDisk().open_store("leader")
    reminders = UnfinishedDeadLetters(store)
    here, there = SharePartitionKey("g", TOPIC, 0), SharePartitionKey("g", TOPIC, 1)
    reminders.remember(there)
    row = keys.partition_prefix(here.topic_partition) + b"g"
    store.write([Write(keys.UNFINISHED_DEAD_LETTERS, row, b"")])
    assert here not in reminders
    reminders.partition_changed(here.topic_partition)
    assert here in reminders and there in reminders
    store.write([Write(keys.UNFINISHED_DEAD_LETTERS, row, None)])
    reminders.partition_changed(here.topic_partition)
    assert here not in reminders and there in reminders


# Rows and marks


class FailsOnce(DiskEvents):
    """A bug: the first write raises what no code expects."""

    has_failed = False

    def write_begins(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise KeyError("planted")


class Leader:
    """The moves of node 1 with one marked row of KEY in its store; `told` are the partitions whose rows changed."""

    def __init__(self, *, is_foreign: bool = False) -> None:
        self.disk = MemoryDisk()
        self.store: MemoryStore = self.disk.open_store("leader")
        self.strays = StrayTopics(self.store)
        self.rows = PartitionRows(self.store, strays=self.strays)
        self.row = Write(keys.LOG, keys.partition_prefix(KEY) + b"12345678", b"batch")
        self.store.write([self.row])
        self.rows.set_mark(KEY, MARK)
        self.view = CatalogView()
        self.told: list[TopicPartition] = []
        self.is_foreign = is_foreign
        network = InProcessNetwork()
        self.moves = PartitionReassignments(
            rows=self.rows,
            view=lambda: self.view,
            is_foreign=lambda: self.is_foreign,
            on_rows=self.told.append,
            channel=network.connect,
            coordinator=lambda: network.connect("coordinator:1"),
            node_id=NODE_ID,
            page_bytes=100,
        )

    async def sees(self, *views: CatalogView) -> None:
        for view in views:
            self.strays.follow(self.view, view)
            self.moves.on_view(self.view, view)
            self.view = view
        await asyncio.sleep(0.05)

    @property
    def has_row(self) -> bool:
        return self.store.get(self.row.family, self.row.key) is not None


SETTLED: Sequence[tuple[str, CatalogView, bool, bool]] = [
    ("it moved away", view_with(leader=OTHER, placement_epoch=MARK + 1), False, False),
    ("its topic is gone", view_of(version=2), False, False),
    ("an older catalog than the move", view_with(leader=OTHER, placement_epoch=MARK), True, True),
    ("a much older one", view_with(leader=OTHER, placement_epoch=1), True, True),
    ("nobody leads it", view_with(leader=-1, placement_epoch=MARK + 1), True, True),
    ("it moves away, and is served", view_with(leader=NODE_ID, moving_to=OTHER), True, True),
    ("it moves away, and is fenced", view_with(leader=NODE_ID, moving_to=OTHER, is_fenced=True), True, True),
    ("the move was taken back", view_with(leader=NODE_ID, placement_epoch=MARK + 1), True, False),
    ("it is led here by an older catalog", view_with(leader=NODE_ID, placement_epoch=MARK), True, True),
]


@pytest.mark.parametrize(("name", "view", "keeps_row", "keeps_mark"), SETTLED, ids=[case[0] for case in SETTLED])
def test_what_becomes_of_marked_rows(name: str, view: CatalogView, keeps_row: bool, keeps_mark: bool) -> None:
    async def main() -> None:
        leader = Leader()
        await leader.sees(view)
        assert leader.has_row is keeps_row
        assert (leader.rows.mark(KEY) is not None) is keeps_mark
        assert leader.told == ([] if keeps_row else [KEY])
        await leader.moves.stop()

    asyncio.run(main())


@pytest.mark.parametrize("runs_on", [True, False], ids=["the leader runs on", "the leader starts again"])
def test_an_older_catalog_that_does_not_know_the_topic_removes_nothing(runs_on: bool) -> None:
    """A restored coordinator lacks a topic that was created, and was moving, after the copy."""
    before = CatalogStart("before", 0)
    seen = replace(view_with(leader=NODE_ID, moving_to=OTHER, is_fenced=True, version=9), starts=(before,))

    async def main() -> None:
        leader = Leader()
        await leader.sees(seen)
        older = view_of(version=10, starts=[before, CatalogStart("restored", 5)])
        if not runs_on:
            leader.view = replace(leader.view, version=0)
        await leader.sees(older)
        assert leader.has_row and leader.rows.mark(KEY) == MARK
        await leader.moves.stop()

    asyncio.run(main())


def test_a_catalog_of_another_cluster_removes_nothing() -> None:
    async def main() -> None:
        leader = Leader(is_foreign=True)
        await leader.sees(view_with(leader=OTHER, placement_epoch=MARK + 1))
        assert leader.has_row and leader.rows.mark(KEY) == MARK
        await leader.moves.stop()

    asyncio.run(main())


def test_a_move_begins_when_the_store_can_be_read_and_not_with_the_next_view_only() -> None:
    """A disk that is full at a node's start has no identity; nothing else may change for days."""

    async def main() -> None:
        leader = Leader(is_foreign=True)
        await leader.sees(view_with(leader=OTHER, moving_to=NODE_ID))
        leader.moves.retry_if_not_foreign()
        await asyncio.sleep(100)
        assert leader.moves.problems() == []
        leader.is_foreign = False
        leader.moves.retry_if_not_foreign()
        await asyncio.sleep(100)
        (problem,) = leader.moves.problems()
        assert "is not live" in problem, "it is asked for"
        await leader.moves.stop()

    VirtualLoop().run(main())


def test_rows_on_their_way_here_stay() -> None:
    async def main() -> None:
        leader = Leader()
        await leader.sees(view_with(leader=OTHER, placement_epoch=MARK - 1, moving_to=NODE_ID))
        assert leader.has_row and leader.rows.mark(KEY) == MARK
        await leader.moves.stop()

    asyncio.run(main())


def test_caches_of_the_rows_are_told_of_the_switch() -> None:
    async def main() -> None:
        leader = Leader()
        await leader.sees(view_with(leader=OTHER, moving_to=NODE_ID))
        assert leader.told == []
        await leader.sees(view_with(leader=NODE_ID, placement_epoch=MARK + 1, version=3))
        assert leader.told == [KEY]
        await leader.moves.stop()

    asyncio.run(main())


def test_only_some_partitions_are_copied_at_once() -> None:
    async def main() -> None:
        leader = Leader()
        await leader.sees(view_with(leader=OTHER, moving_to=NODE_ID, partitions=3 * COPIES_AT_ONCE))
        assert len(leader.moves._receivers) == COPIES_AT_ONCE
        some = view_with(leader=OTHER, moving_to=NODE_ID, partitions=3 * COPIES_AT_ONCE, version=3)
        for partition in some.topics_by_id[TOPIC].partitions[:2]:
            partition.is_moving, partition.leader_node_id = False, NODE_ID
        await leader.sees(some)
        assert len(leader.moves._receivers) == COPIES_AT_ONCE, "the next ones begin when others have ended"
        await leader.moves.stop()
        assert leader.moves._receivers == {}

    asyncio.run(main())


def test_a_disk_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        leader = Leader()
        leader.disk.fail_next_writes(1)
        await leader.sees(view_with(leader=OTHER, placement_epoch=MARK + 1))
        await asyncio.sleep(0.05)
        assert not leader.has_row and leader.rows.mark(KEY) is None
        await leader.moves.stop()

    monkeypatch.setattr("kshare_leader.reassignment.partition_reassignments.REMOVAL_RETRY_MS", 10)
    VirtualLoop().run(main())


def test_a_removal_that_fails_unexpectedly_is_reported_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        leader = Leader()
        leader.disk.events = FailsOnce()
        await leader.sees(view_with(leader=OTHER, placement_epoch=MARK + 1))
        await asyncio.sleep(0.05)
        assert not leader.has_row and leader.rows.mark(KEY) is None
        await leader.moves.stop()

    monkeypatch.setattr("kshare_leader.reassignment.partition_reassignments.REMOVAL_RETRY_MS", 10)
    loop = VirtualLoop()
    loop.run(main())
    (reported,) = loop.problems
    assert "failed unexpectedly" in reported
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_move_that_does_not_go_on_is_a_problem() -> None:
    async def main() -> None:
        leader = Leader()
        await leader.sees(view_with(leader=OTHER, moving_to=NODE_ID))
        receiver, _ = next(iter(leader.moves._receivers.values()))
        assert receiver.problem is None, "it may still go well"
        for _ in range(FAILURES_BEFORE_PROBLEM):
            receiver._loop.note("it is not live")
        assert leader.moves.problems() and "not live" in leader.moves.problems()[0]
        await leader.moves.stop()

    asyncio.run(main())


def test_the_view_of_these_tests_is_one_of_a_catalog() -> None:
    partition = view_with(leader=OTHER, moving_to=NODE_ID).partition(KEY)
    assert isinstance(partition, coordinator_pb2.Topic.Partition) and partition.is_moving
