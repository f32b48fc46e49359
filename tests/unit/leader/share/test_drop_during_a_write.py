"""A share-partition is dropped while a state write is in flight: its acknowledgements are answered with the outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import TOPIC, UNAVAILABLE, Leader, key, make_view, run

ACCEPT = b"\x01"
Drop = Callable[[Leader], Awaitable[None]]


def ready(history: HistoryBuffer | None = None) -> Leader:
    """Ten records in partition 0, whose share-partition starts at 0; its writes wait for `channel.gate`."""
    leader = Leader(history=history)
    for partition in (0, 1):
        leader.channel.initialize(partition, 0)
    leader.log().append(10)
    leader.channel.gate = asyncio.Event()
    return leader


async def fence(leader: Leader) -> None:
    """The partition moves to another leader."""
    view = make_view(2)
    view.topics_by_id[TOPIC].partitions[0].is_fenced = True
    view.topics_by_id[TOPIC].partitions[0].moving_to_node_id = 8
    leader.change_view(view)


async def lose(leader: Leader) -> None:
    """The partition has another leader."""
    view = make_view(2)
    view.topics_by_id[TOPIC].partitions[0].leader_node_id = 8
    leader.change_view(view)


async def new_epoch(leader: Leader) -> None:
    leader.change_view(make_view(2, leader_epoch=6))


async def delete_topic(leader: Leader) -> None:
    leader.change_view(CatalogView(version=2, nodes=leader.view.nodes))


async def drop_state(leader: Leader) -> None:
    request = leader_pb2.DropSharePartitionsRequest(group_id="group")
    request.partitions.add(topic_id=TOPIC, partition=0)
    await leader.service.drop_share_partitions(request, memoryview(b""))


DROPS = (fence, lose, new_epoch, delete_topic, drop_state)


async def begin(leader: Leader, first: int, last: int, types: bytes = ACCEPT) -> asyncio.Task[int]:
    """An acknowledgement of member m1 that is applied, and whose write was sent where none was in flight."""
    task = asyncio.ensure_future(leader.acknowledge("m1", first, last, types))
    await asyncio.sleep(0.1)
    assert not task.done()
    return task


@pytest.mark.parametrize("drop", DROPS)
def test_an_acknowledgement_whose_write_is_in_flight_is_confirmed_when_it_is_durable(drop: Drop) -> None:
    async def test() -> None:
        leader = ready()
        assert await leader.acquire("m1") == [(0, 9, 1)]
        in_flight = await begin(leader, 0, 4)
        not_sent = await begin(leader, 5, 9)
        await drop(leader)
        assert await not_sent in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID)
        await asyncio.sleep(0.1)
        assert not in_flight.done(), "its outcome is not known yet"
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NONE
        assert leader.channel.states[TOPIC, 0].start_offset == 5, "what was answered with an error took no effect"
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("drop", DROPS)
def test_an_acknowledgement_whose_write_is_refused_after_the_drop_is_told_so(drop: Drop) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        in_flight = await begin(leader, 0, 4)
        await drop(leader)
        leader.channel.write_answers = [ErrorCode.FENCED_LEADER_EPOCH]
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader.channel.writes == []
        await leader.service.stop()

    run(test)


def test_a_write_whose_answer_was_lost_is_sent_again_after_the_drop() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        in_flight = await begin(leader, 0, 4)
        await fence(leader)
        leader.channel.stores_anyway, leader.channel.write_answers = True, [UNAVAILABLE]
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NONE
        assert len(leader.channel.writes) == 2
        await leader.service.stop()

    run(test)


def test_a_write_that_was_never_sent_ends_with_the_drop() -> None:
    """No share coordinator owned the state: nothing can be stored, so the error is true at once."""

    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.change_view(replace(leader.view, state_partition_owners={}))
        in_flight = await begin(leader, 0, 4)
        await drop_state(leader)
        assert await in_flight == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert leader.channel.writes == []
        await leader.service.stop()

    run(test)


def test_the_state_is_read_anew_only_after_the_write_in_flight_has_ended() -> None:
    """Else the write, of the same epochs, would change the state behind the back of the one that read it."""

    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        in_flight = await begin(leader, 0, 4)
        await drop_state(leader)
        reads = leader.channel.reads
        assert await leader.acquire("m2", max_wait_ms=500) == []
        assert leader.channel.reads == reads
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NONE
        assert await leader.acquire("m2", max_wait_ms=500) == [(5, 9, 1)]
        assert leader.channel.reads == reads + 1
        await leader.service.stop()

    run(test)


def test_a_leader_that_stops_answers_with_the_outcome_of_the_write() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        in_flight = await begin(leader, 0, 4)
        not_sent = await begin(leader, 5, 9)
        stopping = asyncio.ensure_future(leader.service.stop(5_000))
        assert await not_sent == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(0.5)
        assert not in_flight.done() and not stopping.done()
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NONE
        await stopping
        assert asyncio.get_running_loop().time() < 2
        assert leader.channel.states[TOPIC, 0].start_offset == 5

    run(test)


def test_a_write_that_outlasts_the_grace_of_a_stop_has_an_unknown_outcome() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        in_flight = await begin(leader, 0, 4)
        await leader.service.stop(1_000)
        assert await in_flight == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 1.0 <= asyncio.get_running_loop().time() < 1.5

    run(test)


def test_a_session_that_ends_during_the_write_is_answered_with_its_outcome() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        releasing = asyncio.ensure_future(leader.release("m1"))
        await asyncio.sleep(0.1)
        await fence(leader)
        await asyncio.sleep(0.1)
        assert not releasing.done()
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await releasing == ErrorCode.NONE
        assert {batch.delivery_count for batch in leader.channel.states[TOPIC, 0].state_batches} == {1}
        await leader.service.stop()

    run(test)


def test_metrics_and_history_know_what_became_durable_after_the_drop() -> None:
    async def test() -> None:
        buffer = HistoryBuffer(limit_bytes=1 << 20, counts=HistoryCounts(), wake=lambda at_once: None)
        leader = ready(buffer)
        await leader.acquire("m1")
        counts = leader.service.directory.metrics.share_partitions[key()]
        in_flight = await begin(leader, 0, 4)
        await fence(leader)
        assert leader.channel.gate is not None
        leader.channel.gate.set()
        assert await in_flight == ErrorCode.NONE
        assert counts.acknowledged[ACCEPT[0]] == 5
        assert counts.progress is not None and counts.progress.start_offset == 5
        told = [event["event"] for segment in buffer.take() for event in json.loads(segment.value())["events"]]
        assert told[-3:] == ["accepted", "start_offset_moved", "unloaded"]
        await leader.service.stop()

    run(test)
