"""Acknowledgements of more records than a state write may have batches: one answer, for several writes."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.states import STATE_BATCHES_PER_WRITE_LIMIT, AcknowledgeType
from support.leader.share.service import TOPIC, Leader, entries, key, make_view, run

ACCEPT, RELEASE = b"\x01", b"\x02"
COUNT = 12_000
ALTERNATING = (ACCEPT + RELEASE) * (COUNT // 2)


async def held() -> Leader:
    """Member m1 holds a window of 12,000 records, which an earlier leader left."""
    leader = Leader()
    leader.channel.initialize(0, 0, (0, COUNT - 1, 0, 1))
    leader.log().append(COUNT)
    assert await leader.acquire() == [(0, COUNT - 1, 2)]
    return leader


def accepted(leader: Leader) -> int:
    """The number of accepted records that are durable."""
    served = leader.service.directory.find(key())
    assert served is not None
    return served.counts.acknowledged[AcknowledgeType.ACCEPT]


def test_a_long_record_batch_is_delivered_in_parts() -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, 0)
        leader.log().append(COUNT)
        response, payload = await leader.fetch()
        assert entries(response.partitions[0]) == [(0, 9_999, 1)]
        assert payload.startswith(b"0-11999;"), "the record batch itself is whole"
        waiting = asyncio.ensure_future(leader.fetch("m2", max_wait_ms=5_000))
        await asyncio.sleep(1)
        assert not waiting.done(), "the window is full"
        assert await leader.acknowledge("m1", 0, 9_999, ACCEPT) == ErrorCode.NONE
        response, payload = await waiting
        assert entries(response.partitions[0]) == [(10_000, COUNT - 1, 1)]
        assert payload.startswith(b"0-11999;")
        assert await leader.acknowledge("m2", 10_000, COUNT - 1, ACCEPT) == ErrorCode.NONE
        assert leader.channel.state().start_offset == COUNT
        await leader.service.stop()

    run(test)


def test_alternating_types_for_12_000_records_are_stored_by_two_writes() -> None:
    async def test() -> None:
        leader = await held()
        leader.channel.gate = asyncio.Event()
        answer = asyncio.ensure_future(leader.acknowledge("m1", 0, COUNT - 1, ALTERNATING))
        await asyncio.sleep(0.1)
        leader.channel.gate.set()
        leader.channel.gate = asyncio.Event()
        await asyncio.sleep(0.1)
        assert (len(leader.channel.writes), answer.done(), accepted(leader)) == (1, False, 0), "a part is not durable"
        leader.channel.gate.set()
        assert await answer == ErrorCode.NONE
        sizes = [len(write.partitions[0].state_batches) for write in leader.channel.writes]
        assert sizes == [STATE_BATCHES_PER_WRITE_LIMIT, COUNT - STATE_BATCHES_PER_WRITE_LIMIT]
        state = leader.channel.state()
        assert (state.start_offset, len(state.state_batches)) == (1, COUNT - 1), "the first record is done"
        assert accepted(leader) == COUNT // 2
        assert len(await leader.acquire("m2", max_records=COUNT)) == COUNT // 2
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("refused", [1, 2])
def test_an_acknowledgement_is_refused_where_one_of_its_writes_is(refused: int) -> None:
    async def test() -> None:
        leader = await held()
        leader.channel.write_answers = [*[0] * (refused - 1), ErrorCode.INVALID_REQUEST]
        assert await leader.acknowledge("m1", 0, COUNT - 1, ALTERNATING) == ErrorCode.UNKNOWN_SERVER_ERROR
        still_held = 0 if refused == 1 else STATE_BATCHES_PER_WRITE_LIMIT
        assert await leader.acknowledge("m1", still_held, COUNT - 1, ACCEPT) == ErrorCode.NONE
        if refused == 2:
            refusal = await leader.acknowledge("m1", still_held - 1, still_held - 1, ACCEPT)
            assert refusal == ErrorCode.INVALID_RECORD_STATE, "the first write had released it"
        await leader.service.stop()

    run(test)


def test_an_acknowledgement_whose_second_write_was_not_sent_before_a_drop_is_told_so() -> None:
    async def test() -> None:
        leader = await held()
        leader.channel.gate = asyncio.Event()
        answer = asyncio.ensure_future(leader.acknowledge("m1", 0, COUNT - 1, ALTERNATING))
        await asyncio.sleep(0.1)
        view = make_view(2)
        view.topics_by_id[TOPIC].partitions[0].leader_node_id = 8
        leader.change_view(view)
        leader.channel.gate.set()
        assert await answer == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(leader.channel.writes) == 1
        await leader.service.stop()

    run(test)
