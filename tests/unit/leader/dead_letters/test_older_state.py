"""Dead letters that are newer than the state, as after a restore of an older backup of the share coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.appended import AppendedOffsets, row_of_epoch
from kshare_leader.dead_letters.destination import Destination, Refused, ToBeCreated, Unreachable, find_destination
from kshare_leader.dead_letters.letters import LetterBatch, OffsetRun, SourceRecords
from kshare_leader.dead_letters.limits import STALLED_AFTER_MS
from kshare_leader.dead_letters.port import ArchivingPartition
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_rpc.catalog import CatalogView
from support.leader.share.service import Leader, run

ACCEPT, REJECT = bytes([1]), bytes([3])
GROUP_CONFIGS = {"errors.deadletterqueue.topic.name": "letters"}


class RowTarget:
    """A destination with the row of dead letters that were appended before."""

    def __init__(self, row: AppendedOffsets) -> None:
        self.row = row
        self.appends = 0

    async def find(self, key: SharePartitionKey, topic_name: str) -> Destination | Refused | ToBeCreated | Unreachable:
        if not topic_name:
            broker = Configs(PROCESS_CONFIGS)
            return find_destination(
                CatalogView(), broker, group_id=key.group_id, topic_name="", source_partition=key.partition
            )
        return Destination(TopicPartition(b"letters-00000001", 0), "leader:1", 1_000_000)

    async def create(self, topic_name: str) -> None:
        raise AssertionError(topic_name)

    async def source_records(
        self, served: ArchivingPartition, runs: Sequence[ArchivingRun], limit_bytes: int
    ) -> tuple[Sequence[ArchivingRun], SourceRecords]:
        raise AssertionError("nothing is copied")

    async def append(
        self, served: ArchivingPartition, destination: Destination, letters: LetterBatch
    ) -> list[OffsetRun]:
        self.appends += 1
        row = row_of_epoch(self.row, served.state_epoch, served.truncation)
        already = row.appended(letters.offsets)
        self.row = row.after(served.start_offset, () if already else letters.offsets, 0)
        return already or list(letters.offsets)

    def dropped(self, key: SharePartitionKey) -> None:
        pass

    async def close(self) -> None:
        pass


def leader_with(target: RowTarget) -> Leader:
    """Its share-partition 0 has records 0-9, and the state epoch 3."""
    leader = Leader(letters=target)
    leader.channel.initialize(0, 0)
    leader.log().append(10)
    leader.change_view(replace(leader.view, group_configs={"group": GROUP_CONFIGS}))
    return leader


def test_a_state_that_is_older_than_its_dead_letters_stays_loaded_and_is_reported() -> None:
    async def test() -> None:
        target = RowTarget(AppendedOffsets(4, 0, 0, ()))
        leader = leader_with(target)
        assert await leader.acquire() == [(0, 9, 1)]
        assert await leader.acknowledge("m1", 0, 0, REJECT) == 0
        await asyncio.sleep(STALLED_AFTER_MS / 1000 + 5)
        assert await leader.acknowledge("m1", 1, 9, ACCEPT) == 0, "the lock is still there"
        assert leader.channel.reads == 1 + target.appends and target.appends < 8, "there is a back-off"
        (report,) = leader.reports
        assert "state epoch 3 is older than 4" in report and "Reset the group's offsets" in report
        (problem,) = leader.service.problems()
        assert "state epoch 3 is older than 4" in problem

        leader.channel.reset(0, 5, state_epoch=5)
        await asyncio.sleep(31)
        assert leader.service.problems() == []
        assert await leader.acquire() == [(5, 9, 1)], "the state with the new start offset is loaded"
        assert await leader.acknowledge("m1", 5, 9, REJECT) == 0
        await asyncio.sleep(1)
        assert (target.row.state_epoch, leader.channel.state().start_offset) == (5, 10)
        await leader.service.stop()

    run(test)


def test_without_a_dead_letter_topic_the_records_are_archived() -> None:
    async def test() -> None:
        leader = leader_with(RowTarget(AppendedOffsets(4, 0, 0, ())))
        await leader.acquire()
        assert await leader.acknowledge("m1", 0, 9, REJECT) == 0
        await asyncio.sleep(60)
        assert leader.channel.state().start_offset == 0
        leader.change_view(replace(leader.view, group_configs={}))
        await asyncio.sleep(31)
        assert leader.channel.state().start_offset == 10
        await leader.service.stop()

    run(test)


def test_dead_letters_that_know_a_newer_truncation_are_reported_too() -> None:
    async def test() -> None:
        leader = leader_with(RowTarget(AppendedOffsets(3, 0, 0, (), truncation_leader_epoch=4)))
        await leader.acquire()
        assert await leader.acknowledge("m1", 0, 9, REJECT) == 0
        await asyncio.sleep(STALLED_AFTER_MS / 1000 + 5)
        (problem,) = leader.service.problems()
        assert "was cut in leader epoch 4" in problem
        await leader.service.stop()

    run(test)
