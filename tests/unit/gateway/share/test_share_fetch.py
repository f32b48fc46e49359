"""ShareFetch and ShareAcknowledge through real bytes: sessions, acknowledgements, several leaders, read-ahead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness
from support.gateway.scripted_leader import (
    BATCH_SIZE,
    FakeLeader,
    acknowledged,
    delivered,
    fetched,
    found,
    listed,
    partitions_asked,
    play,
    play_virtually,
    raw_batch,
    share_fetch,
    taken_back,
)

OTHER_MEMBER = "d1f2a3b4-0000-4000-8000-000000000002"


def test_records_are_delivered_and_the_cache_spares_the_next_ones() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 3
        answer = await fetched(client, 0, listed(TOPIC_ID, 0))
        assert found(answer) == [(TOPIC_ID, 0, 0, 0, [(0, 9)], raw_batch(0, 9))]
        assert answer.acquisition_lock_timeout.total_seconds() == 12.345
        await harness.settle()
        (read_ahead,) = harness.leaders[1].requests("Fetch")
        assert read_ahead.partitions[0].fetch_offset == 10
        assert found(await fetched(client, 1)) == [(TOPIC_ID, 0, 0, 0, [(10, 19)], raw_batch(10, 19))]
        assert found(await fetched(client, 2)) == [(TOPIC_ID, 0, 0, 0, [(20, 29)], raw_batch(20, 29))]
        second = harness.leaders[1].requests("ShareFetch")[1]
        assert [(run.first_offset, run.last_offset) for run in second.partitions[0].cached] == [(0, 39)]
        assert found(await fetched(client, 3)) == []

    play(scenario)


def test_nothing_is_read_ahead_at_the_end_of_the_log_or_without_a_cache() -> None:
    async def at_the_end(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].high_watermark = 10
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        await fetched(client, 0, listed(TOPIC_ID, 0))
        await harness.settle()
        assert harness.leaders[1].requests("Fetch") == []

    async def without(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 2
        await fetched(client, 0, listed(TOPIC_ID, 0))
        await harness.settle()
        assert found(await fetched(client, 1)) == [(TOPIC_ID, 0, 0, 0, [(10, 19)], raw_batch(10, 19))]
        assert harness.leaders[1].requests("Fetch") == []

    play(at_the_end)
    play(without, {"kshare.gateway.cache.bytes": "0"})


def test_the_leader_is_told_the_member_and_partitions_take_turns() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0, 1), listed(TOPIC_ID, 2), max_records=50, min_bytes=3)
        await fetched(client, 1)
        first, second = harness.leaders[1].requests("ShareFetch")
        assert (first.owner.group_id, first.owner.member_id, first.owner.gateway_id) == ("workers", MEMBER, 7)
        assert len(first.owner.gateway_incarnation) == 32
        assert (first.max_records, first.min_bytes, first.max_bytes, first.batch_size) == (50, 3, 10_000, 100)
        assert partitions_asked(first) == [(0, True), (1, True), (2, True)]
        assert partitions_asked(second) == [(1, True), (2, True), (0, True)]

    play(scenario)


def test_acknowledged_partitions_are_always_in_the_answer() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        leaders[1].acknowledge_error = ErrorCode.INVALID_RECORD_STATE
        leaders[1].ready[(TOPIC_ID, 0)] = 1
        answer = await fetched(
            client,
            1,
            listed(TOPIC_ID, 0, acknowledge=(5, 6, [1, 2])),
            listed(TOPIC_ID, 2, acknowledge=(7, 7, [1])),
            listed(TOPIC_ID, 9, acknowledge=(8, 8, [1])),
        )
        state, unknown = ErrorCode.INVALID_RECORD_STATE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert sorted(found(answer)) == [
            (TOPIC_ID, 0, 0, state, [(0, 9)], raw_batch(0, 9)),
            (TOPIC_ID, 2, 0, state, [], b""),
            (TOPIC_ID, 9, 0, unknown, [], b""),
        ]
        request = harness.leaders[1].requests("ShareFetch")[1]
        assert partitions_asked(request) == [(0, True), (2, False)]
        (batch,) = request.partitions[0].acknowledgement_batches
        assert (batch.first_offset, batch.last_offset, batch.acknowledge_types) == (5, 6, b"\x01\x02")
        await fetched(client, 2)
        assert partitions_asked(harness.leaders[1].requests("ShareFetch")[2]) == [(0, True)]

    play(scenario)


def test_an_acknowledged_partition_joins_from_version_2_on() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0), version=2)
        await fetched(client, 1, listed(TOPIC_ID, 1, acknowledge=(1, 1, [1])), version=2)
        forgotten = [{"topic_id": TOPIC_ID, "partitions": [2]}]
        more = {"version": 2, "forgotten_topics_data": forgotten}
        await fetched(client, 2, listed(TOPIC_ID, 2, acknowledge=(1, 1, [1])), **more)
        await fetched(client, 3, version=2)
        assert sorted(partitions_asked(harness.leaders[1].requests("ShareFetch")[3])) == [(0, True), (1, True)]

    play(scenario)


@pytest.mark.parametrize(("software", "joins"), [("apache-kafka-java", True), ("confluent-kafka-python", False)])
def test_an_acknowledged_partition_joins_in_version_1_of_the_java_client(software: str, joins: bool) -> None:
    """Kafka 4.1's client speaks version 1 only, and adds a partition in the entry that acknowledges its records."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await client.ask(ApiKey.API_VERSIONS, 3, client_software_name=software, client_software_version="4.1.0")
        await fetched(client, 0, listed(TOPIC_ID, 0), version=1)
        await fetched(client, 1, listed(TOPIC_ID, 1, acknowledge=(1, 1, [1])), version=1)
        await fetched(client, 2, version=1)
        asked = sorted(partitions_asked(harness.leaders[1].requests("ShareFetch")[2]))
        assert asked == [(0, True), *([(1, True)] if joins else [])]

    play(scenario)


@pytest.mark.parametrize(
    ("epoch", "more", "code"),
    [
        (1, {}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (-1, {}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (0, {"group_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"group_id": None}, ErrorCode.INVALID_REQUEST),
        (0, {"member_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"member_id": None}, ErrorCode.INVALID_REQUEST),
        (0, {"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        (0, {"topics": [listed(TOPIC_ID, 0, acknowledge=(1, 1, [1]))]}, ErrorCode.INVALID_REQUEST),
        (0, {"version": 2, "is_renew_ack": True, "max_wait": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests_that_are_refused(epoch: int, more: dict[str, Any], code: ErrorCode) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        answer = await fetched(client, epoch, **more)
        assert int(answer.error_code) == code and answer.error_message and answer.responses == ()
        assert harness.leaders[1].calls == []

    play(scenario)


def test_too_many_sessions() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        assert int((await fetched(client, 0, listed(TOPIC_ID, 0))).error_code) == 0
        answer = await fetched(client, 0, listed(TOPIC_ID, 0), member_id=OTHER_MEMBER)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_LIMIT_REACHED

    play(scenario, {"group.share.max.share.sessions": "1", "group.share.max.size": "1"})


def test_renewing_fetches_nothing() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 5
        await fetched(client, 0, listed(TOPIC_ID, 0), version=2)
        nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        renewal = listed(TOPIC_ID, 0, acknowledge=(0, 9, [4]))
        answer = await fetched(client, 1, renewal, version=2, is_renew_ack=True, **nothing)
        assert found(answer) == [(TOPIC_ID, 0, 0, 0, [], b"")]
        request = harness.leaders[1].requests("ShareFetch")[1]
        assert request.is_renew_ack and partitions_asked(request) == [(0, False)]

    play(scenario)


def test_share_acknowledge() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        first = listed(OTHER_TOPIC_ID, 0, 1, acknowledge=(1, 1, [1]))
        answer = await acknowledged(client, 0, first)
        assert int(answer.error_code) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        answer = await acknowledged(client, 1, first)
        assert int(answer.error_code) == ErrorCode.SHARE_SESSION_NOT_FOUND
        await fetched(client, 0, listed(TOPIC_ID, 0))
        leaders[2].acknowledge_error = ErrorCode.INVALID_RECORD_STATE
        unknown = listed(bytes([7] * 16), 0, acknowledge=(1, 1, [1]))
        answer = await acknowledged(client, 1, first, unknown)
        assert acknowledge_results(answer) == [
            (OTHER_TOPIC_ID, 0, 0),
            (OTHER_TOPIC_ID, 1, ErrorCode.INVALID_RECORD_STATE),
            (bytes([7] * 16), 0, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert int((await acknowledged(client, 1, first)).error_code) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert int((await fetched(client, 2)).error_code) == 0

    play(scenario)


def test_partitions_without_acknowledgements_are_answered_beside_others() -> None:
    """As in Kafka, which leaves them out of the response if no other partition is acknowledged."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        missing = bytes([7] * 16)
        accepted = listed(TOPIC_ID, 0, acknowledge=(1, 1, [1]))
        unknown = listed(missing, 1, acknowledge=(1, 1, [1]))
        code = ErrorCode.UNKNOWN_TOPIC_ID
        await fetched(client, 0, listed(TOPIC_ID, 0))
        answer = await acknowledged(client, 1, accepted, listed(TOPIC_ID, 2), listed(missing, 0))
        assert acknowledge_results(answer) == [(TOPIC_ID, 0, 0), (TOPIC_ID, 2, 0), (missing, 0, code)]
        assert acknowledge_results(await acknowledged(client, 2, listed(TOPIC_ID, 0, 2))) == []
        answer = await acknowledged(client, 3, unknown, listed(TOPIC_ID, 2), listed(missing, 0))
        assert acknowledge_results(answer) == [(missing, 1, code), (missing, 0, code)]
        for leader in leaders.values():
            leader.acknowledge_error = ErrorCode.INVALID_RECORD_STATE
        answer = await acknowledged(client, 4, accepted, listed(TOPIC_ID, 0))
        assert acknowledge_results(answer) == [(TOPIC_ID, 0, ErrorCode.INVALID_RECORD_STATE)]

    play(scenario)


def acknowledge_results(answer: Any) -> list[tuple[bytes, int, int]]:
    return [
        (topic.topic_id.bytes, part.partition_index, int(part.error_code))
        for topic in answer.responses
        for part in topic.partitions
    ]


@pytest.mark.parametrize("by_acknowledge", [True, False])
def test_the_final_epoch_acknowledges_before_it_releases(by_acknowledge: bool) -> None:
    """KAFKA-17396."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        last = listed(TOPIC_ID, 0, acknowledge=(0, 3, [1]))
        answer: Any = await (acknowledged if by_acknowledge else fetched)(client, -1, last)
        assert int(answer.error_code) == 0 and len(answer.responses[0].partitions) == 1
        names = [name for name, _, _ in harness.leaders[1].calls]
        assert names == ["ShareFetch", "ShareAcknowledge", "ReleaseShareSession"]
        assert harness.leaders[1].requests("ReleaseShareSession")[0].owner.member_id == MEMBER
        assert int((await fetched(client, 1)).error_code) == ErrorCode.SHARE_SESSION_NOT_FOUND

    play(scenario)


def test_a_lost_connection_releases_at_every_leader_that_was_used() -> None:
    """KAFKA-19015."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0), listed(OTHER_TOPIC_ID, 1))
        client.lose()
        await harness.settle()
        for leader in harness.leaders.values():
            assert [request.owner.group_id for request in leader.requests("ReleaseShareSession")] == ["workers"]

    play(scenario)


def test_a_newer_connection_takes_over_and_the_older_ones_end_does_not_matter() -> None:
    """KAFKA-19950."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        newer = harness.client()
        await fetched(newer, 0, listed(TOPIC_ID, 0))
        names = [name for name, _, _ in harness.leaders[1].calls]
        assert names == ["ShareFetch", "ReleaseShareSession", "ShareFetch"]
        assert int((await fetched(client, 1)).error_code) == ErrorCode.SHARE_SESSION_NOT_FOUND
        client.lose()
        await harness.settle()
        assert len(harness.leaders[1].requests("ReleaseShareSession")) == 1
        assert int((await fetched(newer, 1)).error_code) == 0

    play(scenario)


def test_starting_anew_on_the_same_connection_releases_nothing() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(OTHER_TOPIC_ID, 1))
        await fetched(client, 0, listed(TOPIC_ID, 0))
        assert harness.leaders[2].requests("ReleaseShareSession") == []
        client.lose()
        await harness.settle()
        assert [len(leader.requests("ReleaseShareSession")) for leader in harness.leaders.values()] == [1, 1]

    play(scenario)


def test_records_that_arrive_for_a_lost_connection_are_taken_back() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        share_fetch(client, 0, listed(TOPIC_ID, 0), max_wait=5_000)
        await harness.settle()
        client.lose()
        await harness.settle()
        assert len(harness.leaders[1].requests("ReleaseShareSession")) == 1
        leaders[1].wake(TOPIC_ID, 0)
        await harness.settle()
        late = harness.leaders[1].requests("ReleaseShareSession")[1]
        assert late.owner.member_id == MEMBER
        assert taken_back(harness.leaders[1]) == [([harness.leaders[1].requests("ShareFetch")[0].fetch_number], [0])]
        assert not harness.leaders[1].requests("ShareAcknowledge"), "a release would count a delivery"

    play(scenario)


def test_a_partition_without_a_leader_is_told_and_does_not_wait() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        topics = [listed(bytes([7] * 16), 0), listed(TOPIC_ID, 0)]
        answer = await fetched(client, 0, *topics, max_wait=50_000)
        unknown: tuple[Any, ...] = (bytes([7] * 16), 0, ErrorCode.UNKNOWN_TOPIC_ID, 0, [], b"")
        assert found(answer) == [unknown, (TOPIC_ID, 0, 0, 0, [], b"")]
        assert harness.leaders[1].requests("ShareFetch")[0].max_wait_ms == 0

    play(scenario)


def test_a_leader_that_is_away() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        server = harness.network.server("leader:1")
        assert server is not None
        await server.stop(0)
        await harness.network.serve("leader:1", [])
        answer = await fetched(client, 0, listed(TOPIC_ID, 0, 1))
        away = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found(answer) == [(TOPIC_ID, part, away, 0, [], b"") for part in (0, 1)]
        answer = await fetched(client, 1, listed(TOPIC_ID, 2, acknowledge=(1, 1, [1])))
        assert (TOPIC_ID, 2, 0, away, [], b"") in found(answer)
        answer = await acknowledged(client, 2, listed(TOPIC_ID, 2, acknowledge=(1, 1, [1])))
        assert int(answer.responses[0].partitions[0].error_code) == away

    play(scenario)


def test_of_several_leaders_the_first_with_records_is_enough() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        for node_id, leader in leaders.items():
            leader.ready[(OTHER_TOPIC_ID, node_id - 1)] = 5
        answer = await fetched(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=5_000)
        assert delivered(answer) == [0]
        assert harness.leaders[2].calls == []
        answer = await fetched(client, 1)
        assert delivered(answer) == [1]
        assert len(harness.leaders[1].requests("ShareFetch")) == 1

    play(scenario)


def test_several_leaders_acknowledge_at_once() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(OTHER_TOPIC_ID, 0, 1))
        leaders[1].ready[(OTHER_TOPIC_ID, 0)] = leaders[2].ready[(OTHER_TOPIC_ID, 1)] = 1
        answer = await fetched(client, 1, listed(OTHER_TOPIC_ID, 0, 1, acknowledge=(0, 0, [1])))
        entries = found(answer)
        assert sorted(entry[1] for entry in entries) == [0, 1]
        assert sum(bool(entry[4]) for entry in entries) == 1
        for leader in harness.leaders.values():
            assert len(leader.requests("ShareAcknowledge")) == 1

    play(scenario)


def test_what_a_second_leader_brings_late_is_the_next_answer() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=5_000)
        await harness.settle()
        assert not future.done()
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        assert delivered(await asyncio.wait_for(future, 5)) == [0]
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        await harness.settle()
        calls = len(harness.leaders[1].calls) + len(harness.leaders[2].calls)
        answer = await fetched(client, 1)
        assert found(answer) == [(OTHER_TOPIC_ID, 1, 0, 0, [(0, 9)], raw_batch(0, 9))]
        assert len(harness.leaders[1].calls) + len(harness.leaders[2].calls) <= calls + 1  # only reading ahead

    play(scenario)


def test_a_leader_that_still_waits_is_not_asked_again() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=5_000)
        await harness.settle()
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        await asyncio.wait_for(future, 5)
        future = share_fetch(client, 1, max_wait=5_000)
        await harness.settle()
        assert len(harness.leaders[2].requests("ShareFetch")) == 2  # once without waiting, once waiting
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        assert delivered(await asyncio.wait_for(future, 5)) == [1]

    play(scenario)


def test_late_records_of_a_forgotten_partition_or_a_lost_connection_are_taken_back() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        future = share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=5_000)
        await harness.settle()
        leaders[1].wake(OTHER_TOPIC_ID, 0)
        await asyncio.wait_for(future, 5)
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        await harness.settle()
        answer = await fetched(client, 1, forgotten_topics_data=[{"topic_id": OTHER_TOPIC_ID, "partitions": [1]}])
        assert found(answer) == []
        await harness.settle()
        kept = harness.leaders[2].requests("ShareFetch")[-1]
        assert taken_back(harness.leaders[2]) == [([kept.fetch_number], [1])]
        future = share_fetch(client, 2, listed(OTHER_TOPIC_ID, 1), max_wait=5_000)
        await harness.settle()
        client.lose()
        await harness.settle()
        leaders[2].wake(OTHER_TOPIC_ID, 1)
        await harness.settle()
        late = harness.leaders[2].requests("ShareFetch")[-1]
        assert taken_back(harness.leaders[2]) == [([kept.fetch_number], [1]), ([late.fetch_number], [1])]
        assert len(harness.leaders[2].requests("ReleaseShareSession")) == 3, "with that of the session's end"

    play(scenario)


def test_waiting_ends_with_the_time_that_was_asked_for() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        loop = asyncio.get_running_loop()
        for epoch, topics in enumerate([[listed(OTHER_TOPIC_ID, 0, 1)], []]):
            started = loop.time()
            answer = await share_fetch(client, epoch, *topics, max_wait=700)
            assert delivered(answer) == [] and 0.69 <= loop.time() - started <= 0.71

    play_virtually(scenario)


@pytest.mark.parametrize("limits", [{"min_bytes": 0}, {"max_records": 0}])
def test_a_fetch_that_no_leader_waits_for_does_not_wait(limits: dict[str, int]) -> None:
    """Asked again and again, the leaders would answer at once each time."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        started = asyncio.get_running_loop().time()
        answer = await share_fetch(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=700, **limits)
        assert delivered(answer) == [] and asyncio.get_running_loop().time() == started
        assert [len(leader.requests("ShareFetch")) for leader in harness.leaders.values()] == [1, 1]

    play_virtually(scenario)


def test_a_batch_that_was_not_cached_is_an_error_and_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        def lying(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ShareFetchResponse()
            entry = answer.partitions.add(topic_id=TOPIC_ID, partition=0)
            entry.acquired_records.add(first_offset=0, last_offset=9, delivery_count=1)
            entry.batches.add(base_offset=0, last_offset=9, length=BATCH_SIZE, inline=False)
            return answer

        harness.leaders[1].answers["ShareFetch"] = lying
        answer = await fetched(client, 0, listed(TOPIC_ID, 0))
        assert found(answer) == [(TOPIC_ID, 0, ErrorCode.UNKNOWN_SERVER_ERROR, 0, [], b"")]
        await harness.settle()
        assert taken_back(harness.leaders[1]) == [([harness.leaders[1].requests("ShareFetch")[0].fetch_number], [0])]
        assert "not cached" in caplog.text

    play(scenario)
