"""Share-partitions whose state a share coordinator refuses to read: clients fetch again at once, and leaders wait."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode
from kshare_leader.share.limits import REFUSED_LOADS_LIMIT, RETRY_INTERVAL_MAX_MS, RETRY_INTERVAL_MS
from kshare_leader.share.refused_loads import RefusedLoads
from support.leader.share.service import Leader, key, make_view, run

REFUSED = int(ErrorCode.FENCED_LEADER_EPOCH)


def ready(*read_answers: int | Exception) -> Leader:
    leader = Leader()
    leader.channel.initialize(0, 0)
    leader.channel.read_answers = list(read_answers)
    leader.log().append(10)
    return leader


def now() -> float:
    return asyncio.get_running_loop().time()


async def fetch_until_refused(leader: Leader) -> None:
    """As a client that asks again as soon as it is answered; until the share coordinator was asked once more."""
    reads = leader.channel.reads
    while leader.channel.reads == reads:
        response, _ = await leader.fetch("m1", max_wait_ms=500)
        assert response.partitions[0].error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_the_share_coordinator_is_asked_with_growing_pauses() -> None:
    async def test() -> None:
        leader = ready(*[REFUSED] * 100)
        await fetch_until_refused(leader)
        assert now() < 0.01, "the first load begins at once"
        times = []
        for _ in range(8):
            before = now()
            await fetch_until_refused(leader)
            times.append(round((now() - before) * 1000, -1))
        assert times == [50, 100, 200, 400, 800, 1000, 1000, 1000]
        await leader.service.stop()

    run(test)


def test_a_start_offset_that_is_not_stored_counts_as_a_refusal() -> None:
    async def test() -> None:
        leader = ready()
        leader.channel.initialize(0, -1)
        leader.channel.write_answers = [int(ErrorCode.KAFKA_STORAGE_ERROR)] * 100
        while now() < 5.0:
            response, _ = await leader.fetch("m1", max_wait_ms=500)
            assert response.partitions[0].error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        assert 6 <= leader.channel.reads <= 12, "50 ms, twice as much each time, up to a second"
        leader.channel.write_answers = []
        await leader.acquire("m1", max_wait_ms=5_000)
        await leader.release("m1", last_fetch_number=10**6)
        leader.log().append(1)
        before = now()
        assert await leader.acquire("m1", fetch_number=10**6 + 1) == [(10, 10, 1)]
        assert now() - before < 0.05, "the back-off has ended"
        await leader.service.stop()

    run(test)


def test_a_fetch_that_waits_for_the_next_load_gets_its_records_at_once() -> None:
    async def test() -> None:
        leader = ready(*[REFUSED] * 4)
        for _ in range(4):
            await fetch_until_refused(leader)
        before = now()
        assert await leader.acquire("m1", max_wait_ms=30_000) == [(0, 9, 1)]
        assert 0.39 < now() - before < 0.45, "when the state is loaded, not when the time of the fetch is over"
        await leader.service.stop()

    run(test)


def test_a_new_leader_epoch_begins_to_load_at_once() -> None:
    async def test() -> None:
        leader = ready(*[REFUSED] * 6)
        for _ in range(6):
            await fetch_until_refused(leader)
        leader.change_view(make_view(2, leader_epoch=leader.leader_epoch + 1))
        before = now()
        assert await leader.acquire("m1") == [(0, 9, 1)]
        assert now() - before < 0.05
        await leader.service.stop()

    run(test)


def test_refusals_are_forgotten_after_a_load_and_after_a_while() -> None:
    refused = RefusedLoads()
    for _ in range(3):
        refused.refused(key(), 1, 0)
    assert refused.pause_ms(key(), 1, 0) == 4 * RETRY_INTERVAL_MS
    assert refused.pause_ms(key(), 1, 4 * RETRY_INTERVAL_MS + 1) == 0
    assert refused.pause_ms(key(), 2, 0) == 0
    later = 4 * RETRY_INTERVAL_MS + RETRY_INTERVAL_MAX_MS + 1
    refused.refused(key(), 1, later)
    assert refused.pause_ms(key(), 1, later) == RETRY_INTERVAL_MS
    refused.loaded(key())
    assert refused.pause_ms(key(), 1, later) == 0


def test_the_oldest_refusals_are_forgotten_first() -> None:
    refused = RefusedLoads()
    for number in range(REFUSED_LOADS_LIMIT + 1):
        refused.refused(key(number), 1, 0)
    assert refused.pause_ms(key(0), 1, 0) == 0
    assert refused.pause_ms(key(1), 1, 0) == refused.pause_ms(key(REFUSED_LOADS_LIMIT), 1, 0) == RETRY_INTERVAL_MS
