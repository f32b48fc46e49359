"""The life of share-partitions at a leader: sessions that end, lost answers, logs that were cut, leaving memory."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from support.leader.share.service import TOPIC, Leader, entries, fetch_partition, run

ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready(*, start: int = 0, records: int = 10) -> Leader:
    leader = Leader()
    for index in range(2):
        leader.channel.initialize(index, start)
    if records:
        leader.log().append(records)
    return leader


def test_what_a_lost_answer_acquired_comes_back_at_once_and_uncounted() -> None:
    async def test() -> None:
        leader = ready()
        leader.log().append(5)
        assert await leader.acquire("m1", fetch_number=3, max_records=10) == [(0, 9, 1)]
        assert await leader.acquire("m1", fetch_number=4) == [(10, 14, 1)]
        assert await leader.release("m1", lost=[4]) == 0
        assert await leader.acquire("m2", fetch_number=5) == [(10, 14, 1)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT, delivered_fetch_number=4) == 0, "still the member's"
        assert await leader.release("m1", lost=[4]) == 0
        assert await leader.acknowledge("m2", 10, 14, ACCEPT, delivered_fetch_number=5) == 0
        await leader.service.stop()

    run(test)


def test_of_a_fetch_only_the_named_partitions_are_taken_back() -> None:
    async def test() -> None:
        leader = ready()
        leader.log(1).append(10)
        await leader.fetch("m1", fetch_partition(0), fetch_partition(1), fetch_number=3)
        assert await leader.release("m1", lost=[3], partitions=[1]) == 0
        response, _ = await leader.fetch("m2", fetch_partition(0), fetch_partition(1), fetch_number=4)
        assert [entries(partition) for partition in response.partitions] == [[], [(0, 9, 1)]]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT, delivered_fetch_number=4) == 0, "still the member's"
        await leader.service.stop()

    run(test)


def test_a_lost_fetch_that_still_waits_acquires_nothing_any_more() -> None:
    async def test() -> None:
        leader = ready(records=0)
        lost = asyncio.ensure_future(leader.acquire("m1", fetch_number=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        again = asyncio.ensure_future(leader.acquire("m1", fetch_number=2, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await leader.release("m1", lost=[1])
        assert await lost == [] and now_ms() == 2000
        leader.log().append(2)
        assert await again == [(0, 1, 1)]
        await leader.service.stop()

    run(test)


def test_a_lost_fetch_whose_acknowledgements_are_being_stored_gives_back_what_it_took() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", fetch_number=1)
        leader.log().append(5)
        leader.channel.gate = asyncio.Event()
        accepts = fetch_partition(0, (0, 9, ACCEPT))
        lost = asyncio.ensure_future(leader.fetch("m1", accepts, fetch_number=2, delivered_fetch_number=1))
        await asyncio.sleep(0.1)
        await leader.release("m1", lost=[2])
        assert await leader.acquire("m2", fetch_number=3, max_wait_ms=0) == [(10, 14, 1)]
        leader.channel.gate.set()
        await lost
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 10, "the acknowledgements went on"
        assert await leader.acknowledge("m2", 10, 14, ACCEPT, delivered_fetch_number=3) == 0
        await leader.service.stop()

    run(test)


def test_a_release_that_comes_late_takes_nothing_from_a_newer_session_of_the_member() -> None:
    async def test() -> None:
        leader = ready()
        leader.log().append(5)
        assert await leader.acquire("m1", fetch_number=3, max_records=10) == [(0, 9, 1)]
        old = asyncio.ensure_future(leader.acquire("other", fetch_number=4, max_wait_ms=0))
        assert await old == [(10, 14, 1)]
        leader.log().append(5)
        assert await leader.acquire("m1", fetch_number=8) == [(15, 19, 1)]
        waiting = asyncio.ensure_future(leader.acquire("m1", fetch_number=9, max_wait_ms=60_000))
        await asyncio.sleep(1)
        assert await leader.release("m1", last_fetch_number=5) == 0
        await asyncio.sleep(1)
        assert await waiting == [(0, 9, 2)], "the newer session waits on, and gets what the older one had"
        assert await leader.acknowledge("m1", 15, 19, ACCEPT, delivered_fetch_number=9) == 0
        await leader.service.stop()

    run(test)


def test_the_end_of_a_session_counts_only_deliveries_that_reached_the_client() -> None:
    """Seed 811270535: a record at its last attempt was archived after two deliveries of three."""

    async def test() -> None:
        leader = ready()
        assert await leader.acquire("m1", fetch_number=1) == [(0, 9, 1)]
        leader.log().append(5)
        assert await leader.acquire("m1", fetch_number=2) == [(10, 14, 1)]
        assert await leader.release("m1", last_fetch_number=2, undelivered=[2]) == 0
        assert await leader.acquire("m2", fetch_number=3) == [(0, 9, 2), (10, 14, 1)]
        await leader.service.stop()

    run(test)


def test_a_share_partition_leaves_memory_with_its_last_session_so_that_new_offsets_are_seen() -> None:
    """An administrator may alter the offsets of an empty group; the next member must not meet the old state."""

    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", fetch_number=1)
        await leader.acquire("m2", fetch_number=2, max_wait_ms=10)
        await leader.release("m1", last_fetch_number=1)
        assert await leader.acquire("m2", fetch_number=3) == [(0, 9, 2)]
        assert leader.channel.reads == 1
        await leader.release("m2", last_fetch_number=3)
        leader.channel.initialize(0, 4)
        assert await leader.acquire("m3", fetch_number=4) == [(4, 9, 1)]
        assert leader.channel.reads == 2
        await leader.service.stop()

    run(test)


def test_a_share_partition_leaves_memory_when_its_last_session_ends_in_its_first_fetch() -> None:
    """The first fetch waits for itself, not for a session; a short-lived consumer ends in it."""

    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, 0)
        waiting = asyncio.ensure_future(leader.acquire("m1", fetch_number=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await leader.release("m1", last_fetch_number=1)
        assert not leader.service._directory.of_group("group")
        assert await waiting == []
        await leader.service.stop()

    run(test)


def test_a_share_partition_leaves_memory_when_its_last_session_ends_while_it_is_loaded() -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, -1)
        leader.channel.gate = asyncio.Event()
        waiting = asyncio.ensure_future(leader.acquire("m1", fetch_number=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await leader.release("m1", last_fetch_number=1)
        leader.channel.gate.set()
        await asyncio.sleep(1)
        assert leader.channel.reads == 1 and leader.channel.state().start_offset == 0
        assert not leader.service._directory.of_group("group")
        await waiting
        await leader.service.stop()

    run(test)


def test_settled_records_at_the_start_of_the_state_move_the_stored_start_offset() -> None:
    """They are there after a write with an unknown outcome (seed 561966383)."""

    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, 0, (0, 9, 2, 1))
        leader.log().append(10)
        assert await leader.acquire("m1", max_wait_ms=100) == []
        assert leader.channel.state().start_offset == 10
        assert len(leader.channel.writes) == 1
        await leader.service.stop()

    run(test)


def test_a_share_partition_stays_while_its_last_release_is_being_stored() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", fetch_number=1)
        leader.channel.gate = asyncio.Event()
        releasing = asyncio.ensure_future(leader.release("m1", last_fetch_number=1))
        await asyncio.sleep(0.1)
        assert leader.service._directory.of_group("group")
        leader.channel.gate.set()
        assert await releasing == 0
        assert not leader.service._directory.of_group("group")
        (batch,) = leader.channel.state().state_batches
        assert (batch.first_offset, batch.last_offset, batch.delivery_count) == (0, 9, 1)
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize(
    ("start", "batches", "delivered"),
    [
        (100, [], [(60, 69, 1)]),
        (50, [(50, 54, 2, 1), (55, 99, 0, 2)], [(55, 59, 3), (60, 69, 1)]),
        (50, [(50, 99, 2, 1)], [(60, 69, 1)]),
        (50, [(50, 99, 4, 1), (100, 119, 0, 1)], [(60, 69, 1)]),
    ],
)
def test_a_log_that_ends_before_the_state_skips_nothing_that_is_new(
    start: int, batches: list[tuple[int, int, int, int]], delivered: list[tuple[int, int, int]]
) -> None:
    async def test() -> None:
        leader = Leader()
        for _ in range(12):
            leader.log().append(5)
        leader.channel.initialize(0, start, *batches)
        waiting = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=0))
        await asyncio.sleep(1)
        assert await waiting == []
        assert any("was cut at offset 60: the log ends there" in report for report in leader.reports)
        leader.log().append(10)
        assert await leader.acquire("m1") == delivered
        # What is stored says the same: a leader that starts now would skip nothing either.
        stored = leader.channel.states[TOPIC, 0]
        assert stored.start_offset <= 60
        assert all(batch.delivery_state == 0 for batch in stored.state_batches if batch.last_offset >= 60)
        await leader.service.stop()

    run(test)


def test_the_log_is_cut_below_what_is_in_flight() -> None:
    """DeleteRecords over available, held and new records: what is held ends with its holder, the rest is passed."""

    async def test() -> None:
        leader = ready()
        leader.log().append(10)
        leader.log().append(10)
        assert await leader.acquire("m1", max_records=10) == [(0, 9, 1)]
        leader.log().log_start_offset = 15
        assert await leader.acquire("m2") == [(15, 29, 1)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 15
        await leader.service.stop()

    run(test)


def test_a_log_that_was_deleted_up_to_its_end_goes_on_at_the_end() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", max_records=3)
        await leader.release("m1")
        leader.log().log_start_offset = 10
        assert await leader.acquire("m2", max_wait_ms=50) == []
        leader.log().append(2)
        assert await leader.acquire("m2") == [(10, 11, 1)]
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 10
        await leader.service.stop()

    run(test)


def test_a_leader_that_stops_does_not_call_a_lock_invalid() -> None:
    """It has dropped its share-partitions, so that it does not know who holds what: somebody else is to be asked."""

    async def test() -> None:
        leader = Leader(partitions=1)
        leader.channel.initialize(0, 0)
        leader.log().append(10)
        await leader.fetch()
        await leader.service.stop()
        assert await leader.acknowledge("m1", 0, 9, b"\x01") == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test)
