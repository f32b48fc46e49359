"""Records that a gateway gives back to leaders, and its responses for partitions that are led elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_gateway.share import releases
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.network import CallFailed
from support.gateway.harness import MEMBER, OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness, topic
from support.gateway.scripted_leader import (
    FakeLeader,
    acknowledged,
    fetched,
    found,
    listed,
    play,
    play_virtually,
    share_fetch,
)

OTHER_MEMBER = "d1f2a3b4-0000-4000-8000-000000000002"


def fail(request: Any, payload: memoryview) -> Any:
    raise CallFailed("scripted to fail")


def test_a_fetch_whose_answer_was_lost_is_taken_back_at_once() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        answer = role.answers["ShareFetch"]
        await fetched(client, 0, listed(TOPIC_ID, 0))
        role.answers["ShareFetch"] = fail
        lost = await fetched(client, 1)
        assert found(lost) == [(TOPIC_ID, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, [], b"")]
        await harness.settle()
        (release,) = role.requests("ReleaseShareSession")
        assert list(release.lost_fetch_numbers) == [role.requests("ShareFetch")[1].fetch_number]
        assert (release.owner.group_id, release.owner.member_id) == ("workers", MEMBER)
        role.answers["ShareFetch"] = answer
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        assert [entry[4] for entry in found(await fetched(client, 2))] == [[(0, 9)]], "the session goes on"
        await harness.settle()
        assert len(role.requests("ReleaseShareSession")) == 1

    play(scenario)


def test_a_leader_is_told_again_until_it_answers() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        role.answers["ShareFetch"] = role.answers["ReleaseShareSession"] = fail
        await share_fetch(client, 1)
        await asyncio.sleep(1)
        await share_fetch(client, 2)
        await asyncio.sleep(2)
        told = len(role.requests("ReleaseShareSession"))
        assert 3 <= told <= 8, "with growing pauses"
        role.answers["ReleaseShareSession"] = lambda request, payload: leader_pb2.ReleaseShareSessionResponse()
        await asyncio.sleep(3)
        last = role.requests("ReleaseShareSession")[-1]
        lost = [request.fetch_number for request in role.requests("ShareFetch")[1:]]
        assert list(last.lost_fetch_numbers) == lost
        told = len(role.requests("ReleaseShareSession"))
        await asyncio.sleep(60)
        assert len(role.requests("ReleaseShareSession")) == told, "and no more when it did"

    play_virtually(scenario)


def test_a_leader_is_told_no_longer_than_its_locks_last() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        role.answers["ShareFetch"] = role.answers["ReleaseShareSession"] = fail
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        await asyncio.sleep(35)
        told = len(role.requests("ReleaseShareSession"))
        assert told > 10
        await asyncio.sleep(60)
        assert len(role.requests("ReleaseShareSession")) == told
        assert not harness.node._share_fetcher._releases._lost

    play_virtually(scenario)


def test_a_leader_that_left_the_catalog_is_not_told_again() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        role.answers["ShareFetch"] = role.answers["ReleaseShareSession"] = fail
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        del harness.catalog.leaders[1]
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        await asyncio.sleep(10)
        assert len(role.requests("ReleaseShareSession")) <= 2

    play_virtually(scenario)


def test_what_is_told_late_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "LOST_FETCHES_LIMIT", 3)

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        role.answers["ShareFetch"] = role.answers["ReleaseShareSession"] = fail
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        for epoch in range(1, 6):
            await share_fetch(client, epoch)
        await asyncio.sleep(5)
        numbers = [request.fetch_number for request in role.requests("ShareFetch")]
        assert list(role.requests("ReleaseShareSession")[-1].lost_fetch_numbers) == numbers[-3:]

    play_virtually(scenario)


def test_the_end_of_a_session_names_the_fetch_that_was_not_answered() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        answer = role.answers["ShareFetch"]

        async def slow(request: Any, payload: memoryview) -> Any:
            await asyncio.sleep(3)
            return await answer(request, payload)

        role.answers["ShareFetch"] = slow
        share_fetch(client, 1)
        await asyncio.sleep(1)
        client.lose()
        await asyncio.sleep(5)
        (release,) = role.requests("ReleaseShareSession")
        numbers = [request.fetch_number for request in role.requests("ShareFetch")]
        assert (release.last_fetch_number, list(release.undelivered_fetch_numbers)) == (numbers[1], [numbers[1]])

    play_virtually(scenario)


def test_nothing_is_undelivered_where_every_fetch_was_answered() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        client.lose()
        await harness.settle()
        (release,) = role.requests("ReleaseShareSession")
        assert not release.undelivered_fetch_numbers

    play_virtually(scenario)


def test_the_end_of_a_session_names_its_last_fetch_and_is_told_again() -> None:
    """KAFKA-19950 from the leader's side: a late release must not end what a newer session of the member has."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        role = harness.leaders[1]
        answer = role.answers["ReleaseShareSession"]
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        role.answers["ReleaseShareSession"] = fail
        client.lose()
        await harness.settle()
        newer = harness.client()
        await share_fetch(newer, 0, listed(OTHER_TOPIC_ID, 0))
        role.answers["ReleaseShareSession"] = answer
        await asyncio.sleep(5)
        old, new = [request.fetch_number for request in role.requests("ShareFetch")]
        releases = role.requests("ReleaseShareSession")
        assert len(releases) == 2
        assert all(old <= release.last_fetch_number < new for release in releases)
        assert not any(release.lost_fetch_numbers for release in releases)

    play_virtually(scenario)


def test_the_final_epoch_is_answered_though_the_leader_cannot_be_told() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        harness.leaders[1].answers["ReleaseShareSession"] = fail
        began = asyncio.get_running_loop().time()
        answer = await share_fetch(client, -1)
        assert int(answer.error_code) == 0 and asyncio.get_running_loop().time() - began < 0.1

    play_virtually(scenario)


def test_leaders_without_room_for_a_new_session_are_told_like_a_full_table() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        full: list[int] = [1, 2]

        def share_fetch_of(node_id: int) -> Callable[[Any, memoryview], Any]:
            async def answer(request: Any, payload: memoryview) -> Any:
                response, pieces = await leaders[node_id].share_fetch(request, payload)
                if node_id in full:
                    response.has_no_room = True
                    for entry in response.partitions:
                        entry.error_code, entry.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, "no room"
                return response, pieces

            return answer

        for node_id in full:
            harness.leaders[node_id].answers["ShareFetch"] = share_fetch_of(node_id)
        both = listed(OTHER_TOPIC_ID, 0, 1)
        began = asyncio.get_running_loop().time()
        answer = await share_fetch(client, 0, both, max_wait=700)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_LIMIT_REACHED and answer.error_message == "no room"
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.7)
        answer = await share_fetch(client, 1, both)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_NOT_FOUND, "it was not opened"
        full.remove(1)
        answer = await share_fetch(client, 0, both)
        codes = {part.partition_index: int(part.error_code) for part in answer.responses[0].partitions}
        assert int(answer.error_code) == 0 and codes == {0: 0, 1: ErrorCode.UNKNOWN_SERVER_ERROR}

    play_virtually(scenario)


def test_the_wait_for_room_begins_with_the_request() -> None:
    """Here the gateway has already waited for records, as one of the leaders is away."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        def full(request: Any, payload: memoryview) -> Any:
            response = leader_pb2.ShareFetchResponse(has_no_room=True)
            response.partitions.add(topic_id=OTHER_TOPIC_ID, partition=1, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            return response

        harness.leaders[1].answers["ShareFetch"] = fail
        harness.leaders[2].answers["ShareFetch"] = full
        began = asyncio.get_running_loop().time()
        answer = await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=700)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.7)

    play_virtually(scenario)


def test_a_full_session_table_is_told_after_the_requests_wait() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        harness.node._gateway.sessions._limit = 1
        await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0))
        began = asyncio.get_running_loop().time()
        answer = await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0), member_id=OTHER_MEMBER, max_wait=700)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.7)
        client.lose()
        await harness.settle()
        other = harness.client()
        answer = await share_fetch(other, 0, listed(OTHER_TOPIC_ID, 0), member_id=OTHER_MEMBER)
        assert int(answer.error_code) == 0, "a session that ends makes room"

    play_virtually(scenario)


def leader_hints(answer: Any) -> tuple[list[tuple[int, int, int]], list[tuple[int, str, int]]]:
    """Each partition with its current leader and epoch, and the endpoints."""
    partitions = [
        (part.partition_index, part.current_leader.leader_id, part.current_leader.leader_epoch)
        for topic in answer.responses
        for part in topic.partitions
    ]
    endpoints = [(int(node.node_id), str(node.host), int(node.port)) for node in answer.node_endpoints]
    return partitions, endpoints


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_leader_error_says_which_gateway_to_ask(version: int, code: int) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        harness.catalog.extra_gateways = [
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_GATEWAY, node_id=8, advertised_host="other.example", advertised_port=9093
            )
        ]
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1, 2, 1])
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)

        def moved(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ShareFetchResponse()
            for wanted in request.partitions:
                answer.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition, error_code=code)
            return answer

        def moved_acknowledge(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ShareAcknowledgeResponse()
            for wanted in request.partitions:
                answer.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition, error_code=code)
            return answer

        for role in harness.leaders.values():
            role.answers["ShareFetch"], role.answers["ShareAcknowledge"] = moved, moved_acknowledge
        answer = await fetched(client, 0, listed(TOPIC_ID, 0, 1), version=version)
        places = {(0, 7, 3): (7, "gateway.example", 9092), (1, 8, 3): (8, "other.example", 9093)}
        partitions, endpoints = leader_hints(answer)
        assert partitions and set(partitions) <= set(places)
        assert set(endpoints) == {places[partition] for partition in partitions}
        answer = await acknowledged(client, 1, listed(TOPIC_ID, 0, 1, acknowledge=(1, 1, [1])))
        partitions, endpoints = leader_hints(answer)
        assert sorted(partitions) == list(places) and sorted(endpoints) == list(places.values())

    play(scenario)


def test_no_hints_without_a_leader_error_or_a_leader() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        answer = await fetched(client, 0, listed(TOPIC_ID, 0))
        assert leader_hints(answer) == ([(0, 0, 0)], [])
        del harness.catalog.leaders[1]
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        answer = await fetched(client, 1)
        assert found(answer) == [(TOPIC_ID, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, [], b"")]
        assert leader_hints(answer) == ([(0, -1, -1)], [])

    play(scenario)


def test_an_acquire_mode_that_does_not_exist_is_refused() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        answer = await fetched(client, 0, listed(TOPIC_ID, 0), version=2, share_acquire_mode=2)
        assert int(answer.error_code) == ErrorCode.INVALID_REQUEST and "record_limit" in answer.error_message
        answer = await fetched(client, 0, listed(TOPIC_ID, 0), version=2, share_acquire_mode=1)
        assert int(answer.error_code) == 0
        assert harness.leaders[1].requests("ShareFetch")[0].share_acquire_mode == 1

    play(scenario)


def test_version_1_has_neither_acquire_mode_nor_renewal() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        (request,) = harness.leaders[1].requests("ShareFetch")
        assert (request.share_acquire_mode, request.is_renew_ack) == (0, False)

    play(scenario)


@pytest.mark.parametrize("field", ["max_bytes", "min_bytes", "max_records", "max_wait"])
def test_a_renewal_asks_for_nothing(field: str) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        answer = await fetched(client, 0, version=2, is_renew_ack=True, **{**nothing, field: 1})
        assert int(answer.error_code) == ErrorCode.INVALID_REQUEST
        answer = await fetched(client, 0, version=2, is_renew_ack=True, **nothing)
        assert int(answer.error_code) == 0

    play(scenario)


def test_the_brokers_fetch_max_bytes_is_the_most() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0), max_bytes=1 << 30)
        await fetched(client, 1, max_bytes=2000)
        assert [request.max_bytes for request in harness.leaders[1].requests("ShareFetch")] == [4096, 2000]

    play(scenario, {"fetch.max.bytes": "4096"})


@pytest.mark.parametrize("by_fetch", [True, False])
def test_franz_go_1352_what_is_only_acknowledged_does_not_join_the_session(by_fetch: bool) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        for partition in (0, 1, 2):
            leaders[1].ready[(TOPIC_ID, partition)] = 5
        acknowledge = fetched if by_fetch else acknowledged
        await acknowledge(client, 1, listed(TOPIC_ID, 1, acknowledge=(0, 0, [1])))
        answer = await fetched(client, 2)
        assert [entry[1] for entry in found(answer)] == [0]

    play(scenario)


def test_the_same_topic_several_times_in_a_request() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0), listed(TOPIC_ID, 1), listed(TOPIC_ID, 0))
        first = listed(TOPIC_ID, 0, acknowledge=(0, 1, [1]))
        second = listed(TOPIC_ID, 0, acknowledge=(2, 3, [2]))
        answer = await fetched(client, 1, first, listed(TOPIC_ID, 1), second)
        assert found(answer) == [(TOPIC_ID, 0, 0, 0, [], b"")]
        request = harness.leaders[1].requests("ShareFetch")[1]
        assert sorted(entry.partition for entry in request.partitions) == [0, 1]
        (both,) = [entry for entry in request.partitions if entry.acknowledgement_batches]
        assert [(batch.first_offset, batch.last_offset) for batch in both.acknowledgement_batches] == [(0, 1), (2, 3)]
        answer = await acknowledged(client, 2, first, second)
        assert [len(topic.partitions) for topic in answer.responses] == [1]

    play(scenario)


@pytest.mark.parametrize("by_fetch", [True, False])
def test_kafka_18164_19485_acknowledgements_on_session_epoch_0_are_answered_at_once(by_fetch: bool) -> None:
    """With an error that makes the client start anew; nothing is acknowledged, and nobody hangs."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        acknowledge = fetched if by_fetch else acknowledged
        more = {"max_wait": 60_000} if by_fetch else {}
        answer = await acknowledge(client, 0, listed(TOPIC_ID, 0, acknowledge=(0, 0, [1])), **more)
        expected = ErrorCode.INVALID_REQUEST if by_fetch else ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert int(answer.error_code) == expected
        assert len(harness.leaders[1].calls) == 1

    play(scenario)
