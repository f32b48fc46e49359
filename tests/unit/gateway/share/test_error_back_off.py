"""The back-off of share sessions: how often a client fetches that fetches again at once after each error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_gateway.share.error_back_off import LONGEST_PAUSE_MS, ErrorBackOff
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from support.gateway.harness import OTHER_TOPIC_ID, GatewayClient, GatewayHarness, topic
from support.gateway.scripted_leader import FakeLeader, delivered, found, listed, play_virtually, share_fetch

GONE_ID = bytes([7] * 16)
BACK_OFF_MS = [0, 10, 20, 40, 80, 160, 200, 200]
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
MIXED_OF_BOB = Acl(
    resource_type=ResourceType.TOPIC,
    resource_name="mixed",
    pattern_type=PatternType.LITERAL,
    principal="User:bob",
    host="*",
    operation=Operation.ALL,
    permission_type=PermissionType.ALLOW,
)


def codes(answer: Any) -> list[int]:
    return [code for _, _, code, _, _, _ in found(answer) if code]


async def waits_ms(
    client: GatewayClient, topics: list[dict[str, Any]], count: int, *, code: int, first_epoch: int = 0, **more: Any
) -> list[int]:
    """How long each of so many ShareFetch requests took, of which each was answered with the error."""
    loop = asyncio.get_running_loop()
    found_ms = []
    for epoch in range(first_epoch, first_epoch + count):
        began = loop.time()
        answer = await share_fetch(client, epoch, *(topics if not epoch else []), **{"max_wait": 500, **more})
        assert codes(answer) == [code]
        found_ms.append(round((loop.time() - began) * 1000))
    return found_ms


def test_the_pause_grows_with_each_error_in_a_row() -> None:
    back_off = ErrorBackOff()
    pauses = []
    for _ in BACK_OFF_MS:
        pauses.append(back_off.pause_ms)
        back_off.failed()
    assert pauses == BACK_OFF_MS
    back_off.succeeded()
    assert back_off.pause_ms == 0


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CORRUPT_MESSAGE])
def test_errors_of_the_only_leader(code: ErrorCode) -> None:
    """NOT_LEADER_OR_FOLLOWER is what a leader answers whose lease ended while the coordinator is away."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        assert await waits_ms(client, [listed(OTHER_TOPIC_ID, 0)], 8, code=code) == BACK_OFF_MS

    play_virtually(scenario)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_partition_without_a_leader(is_known: bool) -> None:
    """Of a deleted topic, or of a leader that is offline."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        if is_known:
            harness.catalog.topics["gone"] = topic("gone", GONE_ID, [9])
            await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await waits_ms(client, [listed(GONE_ID, 0)], 8, code=code) == BACK_OFF_MS

    play_virtually(scenario)


@pytest.mark.parametrize(
    ("topic_id", "code"),
    [(OTHER_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (GONE_ID, ErrorCode.UNKNOWN_TOPIC_ID)],
)
def test_partitions_that_the_authorizer_refuses(topic_id: bytes, code: ErrorCode) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        harness.catalog.acls.append(MIXED_OF_BOB)
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        assert await waits_ms(client, [listed(topic_id, 0)], 8, code=code) == BACK_OFF_MS

    play_virtually(scenario, AUTHORIZER)


def test_the_pause_is_never_longer_than_the_wait_of_the_request() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        waited = await waits_ms(client, [listed(OTHER_TOPIC_ID, 0)], 6, code=code, max_wait=30)
        assert waited == [0, 10, 20, 30, 30, 30]
        assert await waits_ms(client, [], 2, code=code, first_epoch=6, max_wait=0) == [0, 0]

    play_virtually(scenario)


def test_an_error_after_a_fetch_without_errors_is_answered_at_once() -> None:
    """A client must learn of a reassignment as soon as the former leader answers with it."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        await waits_ms(client, [listed(OTHER_TOPIC_ID, 0)], 8, code=code)
        leaders[1].errors.clear()
        assert codes(await share_fetch(client, 8, max_wait=500)) == []
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        assert await waits_ms(client, [], 3, code=code, first_epoch=9) == [0, 10, 20]

    play_virtually(scenario)


@pytest.mark.parametrize("beside", [[listed(OTHER_TOPIC_ID, 0)], [listed(OTHER_TOPIC_ID, 0, 1)]])
def test_records_beside_a_deleted_topic_end_the_pause(beside: list[dict[str, Any]]) -> None:
    """With one leader and with two: the partitions that can be fetched are, for as long as the error is held."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        topics = [listed(GONE_ID, 0), *beside]
        waited = await waits_ms(client, topics, 8, code=ErrorCode.UNKNOWN_TOPIC_ID)
        assert waited == BACK_OFF_MS
        loop = asyncio.get_running_loop()
        began = loop.time()
        future = share_fetch(client, 8, max_wait=500)
        await asyncio.sleep(0.05)
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        answer = await future
        assert delivered(answer) == [0] and codes(answer) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert round((loop.time() - began) * 1000) == 50

    play_virtually(scenario)


def test_records_of_another_leader_end_the_pause() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        def failing(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ShareFetchResponse()
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            answer.partitions.add(topic_id=OTHER_TOPIC_ID, partition=0, error_code=code, error_message="no room")
            return answer

        harness.leaders[1].answers["ShareFetch"] = failing
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        assert await waits_ms(client, [listed(OTHER_TOPIC_ID, 0, 1)], 8, code=code) == BACK_OFF_MS
        future = share_fetch(client, 8, max_wait=500)
        await asyncio.sleep(0.05)
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        assert delivered(await future) == [1]

    play_virtually(scenario)


def test_an_error_while_the_request_waits_does_not_end_the_wait_for_another_leader() -> None:
    """It shortens the wait to the pause."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        await waits_ms(client, [listed(OTHER_TOPIC_ID, 0, 1)], 8, code=code)
        loop = asyncio.get_running_loop()
        for epoch, wakes in ((8, True), (9, False)):
            leaders[1].errors.clear()
            began = loop.time()
            future = share_fetch(client, epoch, max_wait=500)
            await asyncio.sleep(0.02)
            leaders[1].fail(OTHER_TOPIC_ID, 0, code)
            await asyncio.sleep(0.01)
            if wakes:
                leaders[2].wake(OTHER_TOPIC_ID, 1)
            answer = await future
            assert codes(answer) == [code] and delivered(answer) == [1] * wakes
            assert round((loop.time() - began) * 1000) == (30 if wakes else LONGEST_PAUSE_MS)

    play_virtually(scenario)


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_error_does_not_hide_the_records_of_another_leader(is_kept: bool) -> None:
    """Both come at once, or the error came after the former response, and records are there at the next request."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=500)
        await asyncio.sleep(0.02)
        if is_kept:
            leaders[2].wake(OTHER_TOPIC_ID, 1)
            assert delivered(await future) == [1]
        leaders[1].fail(OTHER_TOPIC_ID, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        if is_kept:
            await asyncio.sleep(0.01)
            future = share_fetch(client, 1, max_wait=500)
        answer = await future
        assert delivered(answer) == [1] and codes(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    play_virtually(scenario)


def test_records_beside_an_error_of_the_same_leader_are_delivered_after_the_pause() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        harness.catalog.topics["mixed"] = topic("mixed", OTHER_TOPIC_ID, [1, 1])
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        code = ErrorCode.KAFKA_STORAGE_ERROR
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        assert await waits_ms(client, [listed(OTHER_TOPIC_ID, 0, 1)], 8, code=code) == BACK_OFF_MS
        loop = asyncio.get_running_loop()
        began = loop.time()
        future = share_fetch(client, 8, max_wait=500)
        await asyncio.sleep(0.05)
        leaders[1].wake(OTHER_TOPIC_ID, 1)
        assert delivered(await future) == [] and round((loop.time() - began) * 1000) == LONGEST_PAUSE_MS
        answer = await share_fetch(client, 9, max_wait=500)
        assert delivered(answer) == [1] and codes(answer) == [code]
        assert round((loop.time() - began) * 1000) == LONGEST_PAUSE_MS

    play_virtually(scenario)


def test_records_beside_a_leader_that_is_away_end_the_pause() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        server = harness.network.server("leader:1")
        assert server is not None
        await server.stop(0)
        await harness.network.serve("leader:1", [])
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        waited = await waits_ms(client, [listed(OTHER_TOPIC_ID, 0, 1)], 3, code=code)
        assert waited == [LONGEST_PAUSE_MS] * 3
        future = share_fetch(client, 3, max_wait=500)
        await asyncio.sleep(0.05)
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        assert delivered(await future) == [1]

    play_virtually(scenario)


def test_results_of_acknowledgements_are_held_with_the_errors() -> None:
    """As without errors, where they are held for the request's wait."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        leaders[1].errors[OTHER_TOPIC_ID, 0] = code
        await waits_ms(client, [listed(OTHER_TOPIC_ID, 0)], 7, code=code)
        loop = asyncio.get_running_loop()
        began = loop.time()
        acknowledged = listed(OTHER_TOPIC_ID, 0, acknowledge=(0, 0, [1]))
        answer = await share_fetch(client, 7, acknowledged, max_wait=500)
        assert found(answer) == [(OTHER_TOPIC_ID, 0, code, 0, [], b"")]
        assert round((loop.time() - began) * 1000) == LONGEST_PAUSE_MS
        last = await share_fetch(client, -1, acknowledged, max_wait=500)
        assert int(last.error_code) == 0
        assert round((loop.time() - began) * 1000) == LONGEST_PAUSE_MS, "the end of a session is not held"

    play_virtually(scenario)
