"""The first start offset of a share-partition is found by the newest configs of its group, however old the leader's
view of the catalog is: an answered share.auto.offset.reset=earliest must not be missed, for the start offset stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.network import CallFailed
from support.leader.share.service import UNAVAILABLE, Leader, entries, make_view, run

ACCEPT = b"\x01"
CONFIGS = {"share.auto.offset.reset": "earliest"}


def set_configs(leader: Leader, configs: dict[str, str] = CONFIGS) -> Callable[[], None]:
    """An administrator's change that is in the coordinator's catalog; what is returned brings it to the leader."""
    newer = replace(leader.view, version=leader.view.version + 1, group_configs={"group": configs})
    leader.coordinator.version = lambda: newer.version
    return lambda: leader.change_view(newer)


async def is_initialized(leader: Leader) -> None:
    leader.channel.initialize(0, -1)


async def is_deleted_and_initialized_anew(leader: Leader) -> None:
    await serve_and_leave(leader)
    leader.channel.delete(0)
    leader.channel.initialize(0, -1, state_epoch=9)


async def is_altered(leader: Leader) -> None:
    await serve_and_leave(leader)
    leader.channel.reset(0, -1, state_epoch=9)


async def serve_and_leave(leader: Leader) -> None:
    """The group has its place behind all records, and no member."""
    leader.channel.initialize(0, 0)
    assert await leader.acquire() == [(0, 9, 1)]
    assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
    assert await leader.release("m1") == 0
    assert leader.coordinator.calls == 0
    leader.channel.writes.clear()


@pytest.mark.parametrize("begin", [is_initialized, is_deleted_and_initialized_anew, is_altered])
def test_a_leader_whose_catalog_is_late_waits_for_it(begin: Callable[[Leader], Awaitable[None]]) -> None:
    async def test() -> None:
        leader = Leader()
        leader.log().append(10)
        await begin(leader)
        arrives = set_configs(leader)
        waiting = asyncio.ensure_future(leader.fetch(max_wait_ms=30_000))
        await asyncio.sleep(5)
        assert not waiting.done() and leader.channel.writes == [], "it must not take the default, latest"
        arrives()
        response, _ = await waiting
        assert entries(response.partitions[0]) == [(0, 9, 1)]
        assert leader.channel.writes[0].partitions[0].start_offset == 0
        (report,) = leader.reports
        assert "before this leader has the newest configs" in report and "version 2" in report
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize(
    "answer",
    [UNAVAILABLE, CallFailed("no method"), ErrorCode.NOT_COORDINATOR, ErrorCode.KAFKA_STORAGE_ERROR],
    ids=["unavailable", "an older coordinator", "not coordinator", "storage error"],
)
def test_while_the_coordinator_is_away_fetches_are_empty_and_then_all_is_delivered(answer: int | Exception) -> None:
    async def test() -> None:
        leader = Leader()
        leader.log().append(10)
        leader.channel.initialize(0, -1)
        arrives = set_configs(leader)
        leader.coordinator.answers = [answer] * 8
        while leader.coordinator.answers:
            response, _ = await leader.fetch(max_wait_ms=100)
            (partition,) = response.partitions
            # Java's client takes errors about coordinators in a ShareFetch for fatal; without records it asks again.
            assert (partition.error_code, entries(partition)) == (0, [])
            assert leader.channel.writes == []
        arrives()
        assert await leader.acquire(max_wait_ms=5_000) == [(0, 9, 1)]
        assert len(leader.reports) == 1, "one line, however often it is tried"
        await leader.service.stop()

    run(test)


def test_a_load_that_waits_for_long_is_a_problem_of_the_health_check() -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, -1)
        set_configs(leader)
        await leader.fetch(max_wait_ms=12_000)
        (problem,) = leader.service.problems()
        assert "has been loading its state for" in problem
        await leader.service.stop()

    run(test)


def test_a_share_partition_that_goes_to_another_leader_meanwhile_stores_nothing() -> None:
    async def test() -> None:
        leader = Leader()
        leader.log().append(10)
        leader.channel.initialize(0, -1)
        set_configs(leader)
        waiting = asyncio.ensure_future(leader.fetch(max_wait_ms=30_000))
        await asyncio.sleep(1)
        leader.change_view(make_view(2, leader_epoch=leader.leader_epoch + 1))
        response, _ = await waiting
        assert response.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader.change_view(replace(leader.view, version=2, group_configs={"group": CONFIGS}))
        await asyncio.sleep(5)
        assert leader.channel.writes == []
        await leader.service.stop()

    run(test)


def test_the_isolation_level_of_a_new_share_partition_is_not_missed_either() -> None:
    async def test() -> None:
        leader = Leader()
        leader.log().append(10, producer_id=1)
        leader.channel.initialize(0, -1)
        arrives = set_configs(leader, {**CONFIGS, "share.isolation.level": "read_committed"})
        waiting = asyncio.ensure_future(leader.acquire(max_wait_ms=30_000))
        await asyncio.sleep(1)
        arrives()
        await asyncio.sleep(1)
        assert not waiting.done(), "the transaction is open"
        leader.log().end_transaction(1, committed=True)
        assert await waiting == [(0, 9, 1)]
        await leader.service.stop()

    run(test)


def test_the_coordinator_is_asked_once_for_a_first_start_offset_and_never_for_a_stored_one() -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, -1)
        set_configs(leader)()
        leader.log().append(10)
        began = asyncio.get_running_loop().time()
        assert await leader.acquire() == [(0, 9, 1)]
        # Each call takes a millisecond: the state is read, the version is asked for, the start offset is stored.
        assert round((asyncio.get_running_loop().time() - began) * 1000) == 3
        assert leader.coordinator.calls == 1
        leader.coordinator.answers = [UNAVAILABLE] * 100
        await leader.release("m1")
        assert await leader.acquire("m2") == [(0, 9, 2)]
        await leader.restart()
        assert await leader.acquire("m3") == [(0, 9, 2)]
        assert leader.coordinator.calls == 1
        await leader.service.stop()

    run(test)
