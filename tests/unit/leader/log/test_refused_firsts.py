"""A producer's first batches while its leader's lease or disk comes and goes: none overtakes one that was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import partition_logs
from kshare_leader.log.producers.refused_firsts import ANY_EPOCH, REMEMBERED_MS
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.large_batches import LARGE_COUNT, HeldAside, large_batch
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic, view_of
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch


def batch(sequence: int, *, producer_id: int = 7, producer_epoch: int = 0) -> memoryview:
    return memoryview(build_batch(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence))


class Leader:
    """A leader with a lease that a test takes and gives."""

    def __init__(self) -> None:
        self.has_lease = True
        self.disk = MemoryDisk()
        self.logs = open_logs(self.disk.open_store("leader"), has_lease=lambda: self.has_lease)

    async def code(self, records: memoryview, *, leader_epoch: int = ANY_EPOCH) -> int:
        """The error code of an append; 0 where it is stored."""
        try:
            await self.logs.append(KEY, records, leader_epoch=leader_epoch)
        except KafkaError as error:
            return error.code
        return 0


def run(body: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(time_limit=1_000.0)
    loop.run(body)
    assert loop.problems == []


async def refuses_the_first(leader: Leader, first: memoryview) -> None:
    leader.has_lease = False
    assert await leader.code(first) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.has_lease = True


def test_the_next_batch_waits_for_the_one_that_was_refused() -> None:
    async def test() -> None:
        leader = Leader()
        await refuses_the_first(leader, batch(0))
        assert await leader.code(batch(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [await leader.code(batch(sequence)) for sequence in (0, 1)] == [0, 0]

    run(test())


def test_the_next_batch_waits_for_the_ones_that_were_not_written() -> None:
    """Seed 114285653 of the simulation: the disk worked again before the second batch came."""

    async def test() -> None:
        leader = Leader()
        leader.disk.fail_next_writes(1)
        first, second = (leader.code(batch(sequence)) for sequence in (0, 1))
        assert set(await asyncio.gather(first, second)) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert [await leader.code(batch(sequence)) for sequence in (1, 2)] == [
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        ] * 2
        assert [await leader.code(batch(sequence)) for sequence in (0, 1, 2)] == [0, 0, 0]

    run(test())


def test_a_batch_that_waited_for_the_disk_in_vain_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        leader = Leader()
        monkeypatch.setattr(partition_logs, "QUEUED_APPENDS_LIMIT", 0)
        assert await leader.code(batch(0)) == ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.undo()
        assert await leader.code(batch(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [await leader.code(batch(sequence)) for sequence in (0, 1)] == [0, 0]

    run(test())


def test_a_batch_for_a_topic_that_the_leader_does_not_know_yet_comes_first() -> None:
    """A gateway shows a new topic to clients before each leader has seen it."""

    async def test() -> None:
        leader = Leader()
        new = b"a-new-topic-0001"
        key = TopicPartition(new, 0)
        with pytest.raises(KafkaError) as refused:
            await leader.logs.append(key, batch(0))
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID
        leader.logs.on_view(view_of(topic()), view_of(topic(), topic(new)))
        with pytest.raises(KafkaError) as early:
            await leader.logs.append(key, batch(1))
        assert early.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [(await leader.logs.append(key, batch(sequence))).base_offset for sequence in (0, 1)] == [0, 1]

    run(test())


def test_a_batch_for_whose_validation_there_is_no_room_comes_first() -> None:
    """The queue is full of a large batch for another partition; small ones do not pass through it."""

    async def test() -> None:
        aside = HeldAside()
        logs = open_logs(MemoryDisk().open_store("leader"), aside=aside)
        logs._validation._queued_bytes_limit = 1
        other = asyncio.ensure_future(logs.append(TopicPartition(TOPIC, 1), memoryview(large_batch())))
        first = memoryview(large_batch(producer_id=7, producer_epoch=0, base_sequence=0))
        with pytest.raises(KafkaError) as refused:
            await logs.append(KEY, first)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError) as early:
            await logs.append(KEY, batch(LARGE_COUNT))
        assert early.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        while not aside.begun:
            await asyncio.sleep(0)
        aside.begun[0].set()
        await other

    run(test())


def test_the_lowest_that_was_refused_comes_first() -> None:
    async def test() -> None:
        leader = Leader()
        leader.has_lease = False
        for sequence in (1, 0, 2):
            assert await leader.code(batch(sequence)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader.has_lease = True
        assert await leader.code(batch(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [await leader.code(batch(sequence)) for sequence in (0, 1, 2)] == [0, 0, 0]

    run(test())


@pytest.mark.parametrize("other", [batch(5, producer_id=8), batch(5, producer_epoch=1), memoryview(build_batch())])
def test_others_are_not_held_up(other: memoryview) -> None:
    async def test() -> None:
        leader = Leader()
        await refuses_the_first(leader, batch(0))
        assert await leader.code(other) == 0

    run(test())


def test_a_producer_that_the_log_knows_goes_on_where_it_was() -> None:
    """It may have written elsewhere meanwhile, so what was refused here says nothing about what comes next."""

    async def test() -> None:
        leader = Leader()
        assert await leader.code(batch(0)) == 0
        await refuses_the_first(leader, batch(1))
        assert await leader.code(batch(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # by the log's own sequences
        assert [await leader.code(batch(sequence)) for sequence in (1, 2)] == [0, 0]

    run(test())


def test_a_batch_that_its_client_gave_up_is_forgotten() -> None:
    async def test() -> None:
        leader = Leader()
        await refuses_the_first(leader, batch(0))
        await asyncio.sleep(REMEMBERED_MS / 1000 + 1)
        assert await leader.code(batch(9)) == 0

    run(test())


def test_what_is_no_batch_is_refused_and_not_remembered() -> None:
    async def test() -> None:
        leader = Leader()
        await refuses_the_first(leader, memoryview(b"no batch"))
        assert await leader.code(batch(3)) == 0

    run(test())


def test_a_later_batch_for_an_earlier_leader_epoch_waits_for_the_ones_before_it() -> None:
    """They may have been sent to the leader's last process, when it had ended."""

    async def test() -> None:
        leader = Leader()
        epoch = leader.logs.lookup(KEY).leader_epoch
        assert await leader.code(batch(3), leader_epoch=epoch - 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await leader.code(batch(0), leader_epoch=epoch - 1) == 0
        assert [await leader.code(batch(sequence), leader_epoch=epoch - 1) for sequence in (1, 2, 3)] == [0, 0, 0]

    run(test())


@pytest.mark.parametrize("epoch", [ANY_EPOCH, 1, 2])
def test_a_later_batch_for_this_leader_epoch_is_taken(epoch: int) -> None:
    """The gateway had the answers of those before it. Gateways of earlier versions name no epoch."""

    async def test() -> None:
        leader = Leader()
        sent_for = epoch and leader.logs.lookup(KEY).leader_epoch + epoch - 1
        assert await leader.code(batch(3), leader_epoch=sent_for) == 0

    run(test())


def test_batches_without_a_producer_are_taken_for_any_leader_epoch() -> None:
    async def test() -> None:
        leader = Leader()
        epoch = leader.logs.lookup(KEY).leader_epoch
        assert await leader.code(memoryview(build_batch()), leader_epoch=epoch - 1) == 0

    run(test())
