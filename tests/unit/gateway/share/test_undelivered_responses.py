"""Answers of leaders that the client has not seen yet: their locks run, and acknowledgements are not about them."""

from __future__ import annotations

import asyncio

import pytest

from kshare_gateway.connections import request_memory
from support.gateway.harness import MEMBER, OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness, topic
from support.gateway.scripted_leader import (
    BATCH_SIZE,
    FakeLeader,
    acknowledged,
    delivered,
    fetched,
    found,
    listed,
    play,
    play_virtually,
    share_fetch,
    taken_back,
)


async def keep_an_answer(
    harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient, member_id: str = MEMBER
) -> None:
    """Leader 1 answers the session's first fetch, and what leader 2 brings then is kept."""
    future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=60_000, member_id=member_id)
    await harness.settle()
    leaders[1].wake(OTHER_TOPIC_ID, 0)
    assert delivered(await future) == [0]
    leaders[2].wake(OTHER_TOPIC_ID, 1)
    await harness.settle()


def test_the_locks_of_kept_records_run() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        await asyncio.sleep(5)
        answer = await share_fetch(client, 1)
        assert [entry[4] for entry in found(answer)] == [[(0, 9)]]
        assert 7.3 <= answer.acquisition_lock_timeout.total_seconds() <= 7.35

    play_virtually(scenario)


@pytest.mark.parametrize("limit", ["max_records", "max_bytes"])
def test_a_fetch_that_acquires_nothing_gets_no_kept_records(limit: str) -> None:
    """Java's clients send it to each node but one, to acknowledge or to change their session."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        leaders[1].ready[(OTHER_TOPIC_ID, 0)] = 0
        assert delivered(await share_fetch(client, 1, share_acquire_mode=1, version=2, **{limit: 0})) == []
        assert delivered(await share_fetch(client, 2)) == [1], (
            "they are delivered to the next one that asks for records"
        )
        await harness.settle()
        assert not taken_back(harness.leaders[2])

    play_virtually(scenario)


def test_no_more_records_are_delivered_than_an_exact_limit_allows() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        kept_number = harness.leaders[2].requests("ShareFetch")[-1].fetch_number
        assert delivered(await share_fetch(client, 1, share_acquire_mode=1, version=2, max_records=9)) == []
        await harness.settle()
        assert taken_back(harness.leaders[2]) == [([kept_number], [1])]

    play_virtually(scenario)


def test_leaders_that_wait_share_an_exact_limit() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        both = listed(OTHER_TOPIC_ID, 0, 1)
        future = share_fetch(client, 0, both, max_wait=60_000, share_acquire_mode=1, version=2, max_records=15)
        await harness.settle()
        asked = [harness.leaders[number].requests("ShareFetch")[-1] for number in (1, 2)]
        assert [(request.max_records, request.max_wait_ms > 0) for request in asked] == [(8, True), (8, True)]
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        assert delivered(await future) == [0]

    play_virtually(scenario)


def test_kept_records_with_little_time_left_are_taken_back_and_fetched_anew() -> None:
    """No client saw them, so their delivery does not count."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        await asyncio.sleep(7)
        leaders[2].ready[(OTHER_TOPIC_ID, 1)] = 1
        answer = await share_fetch(client, 1)
        assert [entry[4] for entry in found(answer)] == [[(10, 19)]]
        assert answer.acquisition_lock_timeout.total_seconds() == 12.345
        await harness.settle()
        kept, anew = harness.leaders[2].requests("ShareFetch")[-2:]
        assert taken_back(harness.leaders[2]) == [([kept.fetch_number], [1])]
        assert kept.fetch_number < anew.fetch_number
        assert not harness.leaders[2].requests("ShareAcknowledge"), "a release would count"

    play_virtually(scenario)


def test_kept_records_that_no_fetch_comes_for_are_taken_back_in_time() -> None:
    """Other members get them, and their memory is free, as soon as they cannot be delivered any more."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        await asyncio.sleep(6.1)
        assert not taken_back(harness.leaders[2])
        assert harness.node._gateway.memory.used_bytes == BATCH_SIZE
        await asyncio.sleep(0.1)
        kept = harness.leaders[2].requests("ShareFetch")[-1]
        assert taken_back(harness.leaders[2]) == [([kept.fetch_number], [1])]
        assert harness.node._gateway.memory.used_bytes == 0
        leaders[2].ready[(OTHER_TOPIC_ID, 1)] = 1
        assert [entry[4] for entry in found(await share_fetch(client, 1))] == [[(10, 19)]]
        await asyncio.sleep(60)
        assert len(taken_back(harness.leaders[2])) == 1

    play_virtually(scenario)


@pytest.mark.parametrize("ends_by", ["final epoch", "lost connection"])
def test_kept_records_count_in_memory_and_beyond_their_share_they_are_taken_back(
    monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    members = [f"d1f2a3b4-0000-4000-8000-00000000001{number}" for number in range(4)]

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        memory = harness.node._gateway.memory
        monkeypatch.setattr(request_memory, "KEPT_SHARE", memory.limit_bytes // (2 * BATCH_SIZE))
        for member_id in members:
            await keep_an_answer(harness, leaders, client, member_id)
        assert memory.used_bytes == 2 * BATCH_SIZE
        beyond = [request.fetch_number for request in harness.leaders[2].requests("ShareFetch")[-3::2]]
        assert taken_back(harness.leaders[2]) == [([number], [1]) for number in beyond]
        assert delivered(await share_fetch(client, 1, member_id=members[0])) == [1]
        await harness.settle()
        assert memory.used_bytes == BATCH_SIZE
        if ends_by == "lost connection":
            client.lose()
        else:
            await acknowledged(client, -1, member_id=members[1])
        await harness.settle()
        assert memory.used_bytes == memory.kept_bytes == 0

    play(scenario)


def test_without_room_to_keep_records_a_waiting_fetch_delivers_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the other leader, which come at the same time, are taken back."""
    monkeypatch.setattr(request_memory, "KEPT_SHARE", 1 << 62)

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=60_000)
        await harness.settle()
        for node_id in (1, 2):
            leaders[node_id].wake(OTHER_TOPIC_ID, node_id - 1)
        assert len(delivered(await future)) == 1
        await harness.settle()
        assert len(taken_back(harness.leaders[1])) + len(taken_back(harness.leaders[2])) == 1
        assert harness.node._gateway.memory.used_bytes == 0

    play(scenario)


def test_leaders_that_wait_at_once_get_equal_parts_of_the_bytes() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=60_000, max_bytes=1001)
        await harness.settle()
        for role in (harness.leaders[1], harness.leaders[2]):
            asked = [(request.max_wait_ms > 0, request.max_bytes) for request in role.requests("ShareFetch")]
            assert asked == [(False, 1001), (True, 501)]
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        await future

    play(scenario)


@pytest.mark.parametrize(("leader", "epoch"), [(1, 4), (2, 4), (2, 3)], ids=["elsewhere", "in a new life", "unchanged"])
def test_kept_records_of_a_former_leader_are_not_delivered(leader: int, epoch: int) -> None:
    """Another member may have had them from the new leader, and accepted them."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        moved = next(each for each in harness.catalog.topics.values() if each.topic_id == OTHER_TOPIC_ID)
        moved.partitions[1].leader_node_id, moved.partitions[1].leader_epoch = leader, epoch
        harness.catalog.change()
        await harness.settle()
        answer = await share_fetch(client, 1, max_wait=0)
        is_former = (leader, epoch) != (2, 3)
        assert delivered(answer) == ([] if is_former else [1])
        await harness.settle()
        assert [named for _, named in taken_back(harness.leaders[2])] == [[1]] * is_former, "where it is known"

    play(scenario)


def test_kept_records_of_a_forgotten_partition_are_taken_back_and_the_others_delivered() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        harness.catalog.topics["mixed"] = topic("mixed", OTHER_TOPIC_ID, [1, 2, 2])
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1, 2), max_wait=60_000)
        await harness.settle()
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        assert delivered(await future) == [0]
        leaders[2].ready[(OTHER_TOPIC_ID, 1)] = 1
        leaders[2].wake(OTHER_TOPIC_ID, 2)
        await harness.settle()
        answer = await share_fetch(client, 1, forgotten_topics_data=[{"topic_id": OTHER_TOPIC_ID, "partitions": [1]}])
        assert delivered(answer) == [2]
        await harness.settle()
        kept_number = harness.leaders[2].requests("ShareFetch")[-1].fetch_number
        assert taken_back(harness.leaders[2]) == [([kept_number], [1])]
        assert not harness.leaders[2].requests("ShareAcknowledge")

    play(scenario)


@pytest.mark.parametrize("by_fetch", [True, False])
def test_acknowledgements_are_not_about_a_kept_answer(by_fetch: bool) -> None:
    """The leader would confirm a late ACCEPT of the same member, and the record would be delivered afterwards."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await keep_an_answer(harness, leaders, client)
        first, second = harness.leaders[1], harness.leaders[2]
        late = listed(OTHER_TOPIC_ID, 0, 1, acknowledge=(3, 4, [1]))
        await (fetched if by_fetch else acknowledged)(client, 1, late)
        kept_number = second.requests("ShareFetch")[-1].fetch_number
        assert second.requests("ShareAcknowledge")[0].delivered_fetch_number < kept_number
        delivered_number = first.requests("ShareFetch")[-1].fetch_number
        assert first.requests("ShareAcknowledge")[0].delivered_fetch_number >= delivered_number
        if not by_fetch:
            assert [entry[1] for entry in found(await fetched(client, 2))] == [1]
        await acknowledged(client, 2 if by_fetch else 3, late)
        assert second.requests("ShareAcknowledge")[1].delivered_fetch_number >= kept_number

    play(scenario)


def test_acknowledgements_are_not_about_a_fetch_that_still_waits() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        await fetched(client, 0, listed(TOPIC_ID, 0))
        waiting = share_fetch(client, 1, max_wait=5_000)
        await harness.settle()
        late = listed(TOPIC_ID, 0, acknowledge=(0, 9, [1]))
        answer = asyncio.ensure_future(acknowledged(client, 2, late))
        await harness.settle()
        assert len(role.requests("ShareAcknowledge")) == 1 and not waiting.done()
        leaders[1].wake(TOPIC_ID, 0)
        await answer
        assert [entry[4] for entry in found(await waiting)] == [[(0, 9)]]
        numbers = [request.fetch_number for request in role.requests("ShareFetch")]
        await acknowledged(client, 3, late)
        early, after = [request.delivered_fetch_number for request in role.requests("ShareAcknowledge")]
        assert numbers[0] <= early < numbers[1] <= after
        await fetched(client, 4, late)
        both = role.requests("ShareFetch")[-1]
        assert numbers[1] <= both.delivered_fetch_number < both.fetch_number

    play(scenario)


def test_acknowledgements_do_not_wait_for_memory() -> None:
    """The locks of their records run, and a connection that closes meanwhile would lose them."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        assert delivered(await fetched(client, 0, listed(TOPIC_ID, 0))) == [0]
        memory = harness.node._gateway.memory
        memory.used_bytes += memory.room_bytes  # of others that do not read
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        answer = await fetched(client, 1, listed(TOPIC_ID, 0, acknowledge=(0, 9, [1])))
        assert delivered(answer) == [0] and [entry[3] for entry in found(answer)] == [0]
        leader = harness.leaders[1]
        (alone,) = leader.requests("ShareAcknowledge")
        assert alone.partitions[0].acknowledgement_batches
        assert not leader.requests("ShareFetch")[-1].partitions[0].acknowledgement_batches

    play(scenario)
