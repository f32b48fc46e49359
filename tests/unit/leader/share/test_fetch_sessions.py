"""Remembered fetch sessions: a fetch looks only where something may be deliverable, and misses nothing there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.handlers.share.share_acknowledge import owner_of
from kshare_leader.handlers.share.share_fetch import now_ms
from kshare_leader.share import fetch_sessions
from kshare_leader.share.fetch_sessions import TRIED_AT_ONCE_LIMIT, FetchSession
from kshare_leader.share.limits import LOOK_UP_INTERVAL_MS
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import Leader, MemoryTopicLog, entries, fetch_partition, owner, run

ACCEPT, RELEASE = b"\x01", b"\x02"


def make_leader(partitions: int) -> Leader:
    leader = Leader(partitions=partitions)
    for index in range(partitions):
        leader.channel.initialize(index, 0)
    return leader


async def ask(
    leader: Leader,
    number: int,
    *partitions: leader_pb2.ShareFetchRequest.Partition,
    remembered: int = 0,
    member: str = "m1",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_records: int = 500,
    max_bytes: int = 1 << 20,
) -> leader_pb2.ShareFetchResponse:
    """A ShareFetch with this number; `remembered`: the number of the fetch that named the partitions, 0: this one."""
    request = leader_pb2.ShareFetchRequest(
        owner=owner(member),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_records=max_records,
        batch_size=max_records,
        partitions=partitions,
        fetch_number=number,
        delivered_fetch_number=number - 1,
        remember=not remembered,
        remembered_fetch_number=remembered,
    )
    response, _ = await leader.service.share_fetch(request, memoryview(b""))
    assert isinstance(response, leader_pb2.ShareFetchResponse)
    return response


async def open_session(leader: Leader, number: int, *, member: str = "m1") -> None:
    named = [fetch_partition(index) for index in range(len(leader.logs.all))]
    response = await ask(leader, number, *named, member=member)
    assert response.is_remembered and len(response.partitions) == len(named)
    await asyncio.sleep(0.1)  # loaded


def session_of(leader: Leader, number: int, *, member: str = "m1") -> FetchSession:
    found = leader.service.directory.fetch_sessions.find("group", owner_of(owner(member)), number)
    assert found is not None
    return found


def found(response: leader_pb2.ShareFetchResponse) -> list[tuple[int, list[tuple[int, int, int]]]]:
    return [(partition.partition, entries(partition)) for partition in response.partitions]


def test_a_fetch_answers_and_looks_only_where_records_are() -> None:
    async def test() -> None:
        leader = make_leader(partitions=50)
        await open_session(leader, 1)
        assert found(await ask(leader, 2, remembered=1)) == []
        assert not session_of(leader, 1).ready
        leader.log(17).append(10)
        await asyncio.sleep(0)
        assert list(session_of(leader, 1).ready) == [key for key in session_of(leader, 1).served if key.partition == 17]
        assert found(await ask(leader, 3, remembered=1)) == [(17, [(0, 9, 1)])]
        response = await ask(leader, 4, fetch_partition(17, (0, 9, RELEASE)), remembered=1)
        assert found(response) in ([(17, [])], [(17, [(0, 9, 2)])]), "acknowledged partitions are named"
        await leader.service.stop()

    run(test)


def test_what_is_not_here_yet_is_not_looked_at_again_when_something_else_is() -> None:
    """In front of an existing cluster it is known that there are records before they are here."""

    async def test() -> None:
        leader = make_leader(partitions=50)
        await open_session(leader, 1)
        logs = [leader.log(index) for index in range(50)]
        for log in logs:
            log.is_here = False
            log.append(10)
        waiting = asyncio.ensure_future(ask(leader, 2, remembered=1, max_wait_ms=500))
        await asyncio.sleep(0.01)
        before = sum(log.reads for log in logs)
        for log in logs[:-1]:
            log.append(10)  # it wakes the fetch
            await asyncio.sleep(0.001)
        assert 49 <= sum(log.reads for log in logs) - before <= 2 * 49
        logs[-1].arrive()
        assert found(await waiting) == [(49, [(0, 9, 1)])]
        logs[3].arrive()
        await asyncio.sleep(0)
        assert found(await ask(leader, 3, remembered=1)) == [(3, [(0, 19, 1)])]
        await leader.service.stop()

    run(test)


def test_each_partition_is_tried_in_turn() -> None:
    async def test() -> None:
        leader = make_leader(partitions=40)
        await open_session(leader, 1)
        for index in range(40):
            for _ in range(3):
                leader.log(index).append(10)
        tried = []
        for number in range(2, 42):
            for partition, acquired in found(await ask(leader, number, remembered=1, max_records=5)):
                tried.append(partition)
                assert acquired
        assert sorted(tried) == list(range(40)), "none twice before all had their turn"
        await leader.service.stop()

    run(test)


def test_a_partition_whose_batch_does_not_fit_behind_others_is_first_the_next_time() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        for _ in range(20):
            leader.log(0).append(10, size=400)
        leader.log(1).append(10, size=700)
        await asyncio.sleep(0)
        tried = [
            [partition for partition, _ in found(await ask(leader, number, remembered=1, max_bytes=1000))]
            for number in (2, 3, 4)
        ]
        assert tried == [[0], [1], [0]]
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_an_error_does_not_take_the_place_of_the_batch_that_each_fetch_may_have(is_remembered: bool) -> None:
    """A batch above max_bytes is delivered to a fetch without other records."""

    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        leader.log(0).append(10)
        leader.log(0).fails = True
        leader.log(1).append(10, size=700)
        await asyncio.sleep(0)
        named = () if is_remembered else (fetch_partition(0), fetch_partition(1))
        response = await ask(leader, 2, *named, remembered=1 if is_remembered else 0, max_bytes=100)
        assert {entry.partition: (entry.error_code, entries(entry)) for entry in response.partitions} == {
            0: (ErrorCode.KAFKA_STORAGE_ERROR, []),
            1: (ErrorCode.NONE, [(0, 9, 1)]),
        }
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_partition_that_cannot_be_read_is_answered_at_once_with_the_records_of_others(is_remembered: bool) -> None:
    """Held until the wait is over, the error would also hold the records of a partition that fails only once."""

    async def test() -> None:
        leader = make_leader(partitions=3)
        await open_session(leader, 1)
        partitions = [] if is_remembered else [fetch_partition(index) for index in range(3)]
        remembered = int(is_remembered)
        for index in (0, 1):
            leader.log(index).append(10)
            leader.log(index).fails = True
        await asyncio.sleep(0)
        began, storage = now_ms(), ErrorCode.KAFKA_STORAGE_ERROR

        def errors(response: leader_pb2.ShareFetchResponse) -> dict[int, int]:
            return {entry.partition: entry.error_code for entry in response.partitions if entry.error_code}

        response = await ask(leader, 2, *partitions, remembered=remembered, max_wait_ms=3000)
        assert errors(response) == {0: storage, 1: storage} and now_ms() == began
        leader.log(2).append(10)
        await asyncio.sleep(0)
        response = await ask(leader, 3, *partitions, remembered=remembered, max_wait_ms=3000)
        assert errors(response) == {0: storage, 1: storage} and now_ms() == began
        assert (2, [(0, 9, 1)]) in found(response)
        leader.log(0).fails = leader.log(1).fails = False
        response = await ask(leader, 4, *partitions, remembered=remembered, max_wait_ms=3000)
        assert errors(response) == {} and now_ms() == began
        assert {(0, 9, 1)} == {run for index, runs in found(response) if index != 2 for run in runs}
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_read_that_fails_ends_the_wait(is_remembered: bool) -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        partitions = [] if is_remembered else [fetch_partition(index) for index in range(2)]
        began = now_ms()
        waiting = asyncio.ensure_future(ask(leader, 2, *partitions, remembered=int(is_remembered), max_wait_ms=3000))
        await asyncio.sleep(0.02)
        leader.log(0).fails = True
        leader.log(0).append(10)
        response = await waiting
        assert response.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert now_ms() - began == 20
        await leader.service.stop()

    run(test)


def test_a_partition_that_is_not_found_is_answered_at_once() -> None:
    """It may be there a moment later, and nothing looks it up again during a wait."""

    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        began = now_ms()
        response = await ask(leader, 2, fetch_partition(0), fetch_partition(2), max_wait_ms=3000)
        assert [entry.error_code for entry in response.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert now_ms() == began
        await leader.service.stop()

    run(test)


def test_a_fetch_that_records_fill_looks_at_few_share_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    has_deliverable = ServedPartition.has_deliverable

    def counting(served: ServedPartition) -> bool:
        looked_at.append(served.key.partition)
        return has_deliverable(served)

    async def test() -> None:
        leader = make_leader(partitions=40)
        await open_session(leader, 1)
        for index in range(40):
            leader.log(index).append(10)
        await asyncio.sleep(0)
        monkeypatch.setattr(ServedPartition, "has_deliverable", counting)
        counts = []
        for number in range(2, 12):
            looked_at.clear()
            assert len(found(await ask(leader, number, remembered=1, max_records=20))) == 2
            counts.append(len(looked_at))
        assert counts[0] <= TRIED_AT_ONCE_LIMIT and counts[1:] == [3] * 9, "of them two have the records"
        await leader.service.stop()

    run(test)


def test_bytes_are_divided_between_many_share_partitions_also_after_fetches_that_records_filled() -> None:
    async def test() -> None:
        leader = make_leader(partitions=40)
        await open_session(leader, 1)
        for index in range(40):
            for _ in range(100):
                leader.log(index).append(10)
        await asyncio.sleep(0)
        max_bytes = 100 * TRIED_AT_ONCE_LIMIT
        assert len(found(await ask(leader, 2, remembered=1, max_bytes=max_bytes))) == TRIED_AT_ONCE_LIMIT, (
            "a batch of 100 bytes of each"
        )
        assert len(found(await ask(leader, 3, remembered=1, max_bytes=max_bytes, max_records=5))) == 1
        await ask(leader, 4, remembered=1, max_bytes=max_bytes)
        assert len(found(await ask(leader, 5, remembered=1, max_bytes=max_bytes))) == TRIED_AT_ONCE_LIMIT
        await leader.service.stop()

    run(test)


def test_the_session_that_waited_longest_is_served_first_though_its_fetches_end_meanwhile() -> None:
    async def test() -> None:
        leader = make_leader(partitions=1)
        for member in ("first", "second"):
            await open_session(leader, 1, member=member)
        assert found(await ask(leader, 2, remembered=1, member="first", max_wait_ms=100)) == []
        second = asyncio.ensure_future(ask(leader, 2, remembered=1, member="second", max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        first = asyncio.ensure_future(ask(leader, 3, remembered=1, member="first", max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        leader.log(0).append(1)
        assert found(await first) == [(0, [(0, 0, 1)])]
        again = asyncio.ensure_future(ask(leader, 4, remembered=1, member="first", max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        leader.log(0).append(1)
        assert found(await second) == [(0, [(1, 1, 1)])], "who had records waits behind the others"
        leader.log(0).append(1)
        assert found(await again) == [(0, [(2, 2, 1)])]
        await leader.service.stop()

    run(test)


def test_a_remembered_session_acquires_nothing_without_a_lease() -> None:
    """Another node may lead the partitions already, also before the session looks them up again."""

    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        leader.log(0).append(10)
        leader.has_lease = False
        assert found(await ask(leader, 2, remembered=1)) == []
        leader.has_lease = True
        await asyncio.sleep(LOOK_UP_INTERVAL_MS / 1000)
        assert found(await ask(leader, 3, remembered=1)) == [(0, [(0, 9, 1)])]
        await leader.service.stop()

    run(test)


def test_a_waiting_fetch_acquires_nothing_without_a_lease() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        waiting = asyncio.ensure_future(ask(leader, 2, remembered=1, max_wait_ms=1_000))
        await asyncio.sleep(0.5)
        leader.has_lease = False
        leader.log(1).append(10)
        assert found(await waiting) == []
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("min_bytes", [1, 150])
def test_a_waiting_fetch_ends_with_an_append(min_bytes: int) -> None:
    async def test() -> None:
        leader = make_leader(partitions=3)
        await open_session(leader, 1)
        waiting = asyncio.ensure_future(ask(leader, 2, remembered=1, max_wait_ms=60_000, min_bytes=min_bytes))
        await asyncio.sleep(5)
        assert not waiting.done()
        leader.log(2).append(10)
        await asyncio.sleep(0.1)
        assert waiting.done() == (min_bytes == 1), "100 bytes are there"
        leader.log(1).append(10)
        assert found(await waiting)
        await leader.service.stop()

    run(test)


def test_the_longest_waiting_session_is_served_first() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        for number, member in enumerate(("m1", "m2", "m3"), 1):
            await open_session(leader, number, member=member)
            await ask(leader, 10 + number, remembered=number, member=member)
        waits = []
        for number, member in ((2, "m2"), (3, "m3"), (1, "m1")):
            call = ask(leader, 20 + number, remembered=number, member=member, max_wait_ms=60_000, max_records=10)
            waits.append(asyncio.ensure_future(call))
            await asyncio.sleep(1)
        for index, wait in enumerate(waits):
            leader.log().append(10)
            await asyncio.sleep(0.1)
            assert [other.done() for other in waits] == [True] * (index + 1) + [False] * (2 - index)
            assert found(await wait) == [(0, [(index * 10, index * 10 + 9, 1)])]
        await leader.service.stop()

    run(test)


def test_an_error_of_one_partition_ends_the_wait() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        waiting = asyncio.ensure_future(ask(leader, 2, remembered=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        leader.change_view(replace(leader.view, topics_by_id={}, topics_by_name={}))
        response = await asyncio.wait_for(waiting, 1)
        assert {entry.error_code for entry in response.partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
        response = await ask(leader, 3, remembered=1, max_wait_ms=60_000)
        assert [entry.error_code for entry in response.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
        await leader.service.stop()

    run(test)


def test_a_dropped_share_partition_is_loaded_again_by_the_next_fetch() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        await ask(leader, 2, remembered=1)
        leader.service.log_replaced(next(iter(leader.logs.all)))
        leader.log().append(10)
        await asyncio.sleep(0)
        response = await ask(leader, 3, remembered=1, max_wait_ms=5_000)
        assert found(response) == [(0, [(0, 9, 1)])]
        await leader.service.stop()

    run(test)


def test_a_log_that_was_reopened_without_notice_is_found_within_seconds() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        await ask(leader, 2, remembered=1)
        before = leader.log()
        key = next(key for key, log in leader.logs.all.items() if log is before)
        leader.logs.all[key] = MemoryTopicLog(0)
        leader.log().append(10)
        await asyncio.sleep(LOOK_UP_INTERVAL_MS / 1000)
        await ask(leader, 3, remembered=1)
        await asyncio.sleep(0.1)
        assert found(await ask(leader, 4, remembered=1)) == [(0, [(0, 9, 1)])]
        await leader.service.stop()

    run(test)


def test_an_unknown_session_is_told_and_nothing_is_done() -> None:
    async def test() -> None:
        leader = make_leader(partitions=1)
        leader.log().append(10)
        assert entries((await ask(leader, 1, fetch_partition(0), max_wait_ms=500)).partitions[0]) == [(0, 9, 1)]
        response = await ask(leader, 5, fetch_partition(0, (0, 9, ACCEPT)), remembered=4)
        assert response.is_forgotten and not response.partitions
        assert await leader.acknowledge("m1", 0, 9, ACCEPT, delivered_fetch_number=1) == 0, "it was acquired still"
        await leader.service.stop()

    run(test)


def test_a_release_ends_the_session_and_its_wait_but_not_a_newer_one() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        await ask(leader, 2, remembered=1)
        waiting = asyncio.ensure_future(ask(leader, 3, remembered=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await leader.release("m1", last_fetch_number=2)
        await asyncio.sleep(1)
        assert not waiting.done(), "it is newer than the session that ended"
        await leader.release("m1", last_fetch_number=3)
        assert found(await asyncio.wait_for(waiting, 1)) == []
        leader.log().append(10)
        assert (await ask(leader, 4, remembered=1)).is_forgotten
        await leader.service.stop()

    run(test)


def test_a_lost_fetch_of_a_session_is_ended() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        waiting = asyncio.ensure_future(ask(leader, 2, remembered=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await leader.release("m1", lost=[2])
        assert found(await asyncio.wait_for(waiting, 1)) == []
        leader.log().append(10)
        await asyncio.sleep(0)
        assert found(await ask(leader, 3, remembered=1)) == [(0, [(0, 9, 1)])]
        await leader.service.stop()

    run(test)


def test_a_session_keeps_its_share_partitions_in_memory_and_one_without_fetches_is_forgotten() -> None:
    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        served = dict(leader.service.directory.served)
        for number in range(2, 12):
            await ask(leader, number, remembered=1, max_wait_ms=60_000)
        assert leader.service.directory.served == served
        await asyncio.sleep(900)
        assert not leader.service.directory.served
        assert (await ask(leader, 12, remembered=1)).is_forgotten
        await leader.service.stop()

    run(test)


def test_no_more_is_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "REMEMBERED_PARTITIONS_LIMIT", 3)

    async def test() -> None:
        leader = make_leader(partitions=2)
        await open_session(leader, 1)
        named = [fetch_partition(index) for index in range(2)]
        assert not (await ask(leader, 2, *named, member="m2")).is_remembered
        await leader.release("m1", last_fetch_number=1)
        assert (await ask(leader, 3, *named, member="m2")).is_remembered
        await leader.service.stop()

    run(test)


def test_a_member_that_names_all_partitions_each_time_keeps_its_place() -> None:
    """Each of its waits would else begin behind those of members whose sessions are remembered: it got one of 200."""

    async def test() -> None:
        leader = make_leader(1)
        got = {"names": 0, "remembered": 0}
        numbers = count(1)

        async def work(member: str) -> None:
            remembered = 0
            while True:
                number = next(numbers)
                named = [] if remembered else [fetch_partition(0)]
                response = await ask(
                    leader, number, *named, remembered=remembered, member=member, max_wait_ms=500, max_records=1
                )
                if member == "remembered" and response.is_remembered:
                    remembered = number
                for first, last, _ in [entry for partition in response.partitions for entry in entries(partition)]:
                    got[member] += 1
                    await leader.acknowledge(member, first, last, ACCEPT, delivered_fetch_number=number)
                await asyncio.sleep(0.002)

        workers = [asyncio.ensure_future(work(member)) for member in got]
        for _ in range(50):
            await asyncio.sleep(0.613)
            leader.log().append(1)
        await asyncio.sleep(1)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert sum(got.values()) == 50 and min(got.values()) >= 20, got
        await leader.service.stop()

    run(test)
