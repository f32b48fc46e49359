"""Produce, Fetch and ListOffsets through real bytes, between scripted roles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, unknown_id, versions_of

BATCH = bytes(range(200))
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def produced(request: Any, payload: memoryview) -> Any:
    answer = leader_pb2.ProduceResponse()
    for index, entry in enumerate(request.partitions):
        answer.partitions.add(
            topic_id=entry.topic_id, partition=entry.partition, base_offset=100 + index, log_append_time_ms=-1
        )
    return answer


def topic_data(version: int, *topics: tuple[str, Any, list[tuple[int, bytes | None]]]) -> list[dict[str, Any]]:
    return [
        {
            **({"topic_id": topic_id} if version >= 13 else {"name": name}),
            "partition_data": [{"index": index, "records": records} for index, records in partitions],
        }
        for name, topic_id, partitions in topics
    ]


@pytest.mark.parametrize("version", versions_of(ApiKey.PRODUCE))
def test_produce_at_several_leaders(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for leader in harness.leaders.values():
            leader.answers["Produce"] = produced
        data = topic_data(
            version,
            ("mixed", OTHER_TOPIC_ID, [(1, BATCH[:70]), (0, BATCH[:80])]),
            ("orders", TOPIC_ID, [(2, BATCH[:90]), (9, BATCH[:90]), (0, None)]),
            ("missing", unknown_id(), [(0, BATCH)]),
        )
        answer = await harness.client().ask(ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=data)
        found = [
            [(entry.index, int(entry.error_code), entry.base_offset) for entry in response.partition_responses]
            for response in answer.responses
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found == [
            [(1, 0, 100), (0, 0, 100)],
            [(2, 0, 101), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), (0, ErrorCode.INVALID_RECORD, -1)],
            [(0, unknown, -1)],
        ]
        (_, request, payload), *more = harness.leaders[1].calls
        assert not more and payload == BATCH[:80] + BATCH[:90]
        assert [(part.partition, part.records_length) for part in request.partitions] == [(0, 80), (2, 90)]
        assert harness.leaders[2].calls[0][2] == BATCH[:70]

    run(scenario)


def test_produce_without_acknowledgement() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Produce"] = produced
        client = harness.client()
        silent = client.send(ApiKey.PRODUCE, 9, acks=0, topic_data=topic_data(9, ("orders", TOPIC_ID, [(0, BATCH)])))
        await client.ask(ApiKey.API_VERSIONS, 3)
        assert not silent.done() and client.answered == [2] and not client.transport.is_closed
        client.send(ApiKey.PRODUCE, 9, acks=0, topic_data=topic_data(9, ("missing", TOPIC_ID, [(0, BATCH)])))
        await harness.settle()
        assert client.transport.is_closed

    run(scenario)


def test_produce_without_acknowledgement_closes_for_a_denied_topic_too() -> None:
    """As KafkaApis.sendNoOpResponse: a client that gets no response learns of errors in no other way."""
    hidden = Acl(
        resource_type=ResourceType.TOPIC,
        resource_name="mixed",
        pattern_type=PatternType.LITERAL,
        principal="User:bob",
        host="*",
        operation=Operation.WRITE,
        permission_type=PermissionType.ALLOW,
    )

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls.append(hidden)
        harness.catalog.change()
        await harness.settle()
        harness.leaders[1].answers["Produce"] = produced
        client = harness.client()
        data = topic_data(9, ("orders", TOPIC_ID, [(0, BATCH)]), ("mixed", OTHER_TOPIC_ID, [(0, BATCH)]))
        client.send(ApiKey.PRODUCE, 9, acks=0, topic_data=data)
        await harness.settle()
        assert len(harness.leaders[1].calls) == 1, "what is allowed is stored"
        assert client.transport.is_closed

    run(scenario, AUTHORIZER)


def test_a_long_produce_is_not_overtaken_while_its_client_is_authorized() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Produce"] = produced
        client = harness.client()
        others: list[tuple[str, Any, list[tuple[int, bytes | None]]]] = [
            (f"missing {number}", unknown_id(), [(0, BATCH)]) for number in range(1_200)
        ]
        long = topic_data(9, *others, ("orders", TOPIC_ID, [(0, BATCH[:100])]))
        short = topic_data(9, ("orders", TOPIC_ID, [(0, BATCH[:90])]))
        sent = [client.send(ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=data) for data in (long, short)]
        await asyncio.wait_for(asyncio.gather(*sent), 5)
        assert [len(payload) for _, _, payload in harness.leaders[1].calls] == [100, 90]

    run(scenario, AUTHORIZER)


def test_produce_with_other_acks_is_refused() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        data = topic_data(9, ("orders", TOPIC_ID, [(0, BATCH)]))
        answer = await harness.client().ask(ApiKey.PRODUCE, 9, topic_data=data, acks=2)
        assert int(answer.responses[0].partition_responses[0].error_code) == ErrorCode.INVALID_REQUIRED_ACKS
        assert harness.leaders[1].calls == []

    run(scenario)


async def stop_leader(harness: GatewayHarness, address: str) -> None:
    server = harness.network.server(address)
    assert server is not None
    await server.stop(0)
    await harness.network.serve(address, [])


def test_a_leader_that_is_away_is_told_so_that_clients_try_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await stop_leader(harness, "leader:2")
        harness.leaders[1].answers["Produce"] = produced
        client = harness.client()
        data = topic_data(9, ("mixed", OTHER_TOPIC_ID, [(0, BATCH), (1, BATCH)]))
        answer = await client.ask(ApiKey.PRODUCE, 9, acks=1, topic_data=data)
        away = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [int(part.error_code) for part in answer.responses[0].partition_responses] == [0, away]
        wanted = [{"topic": "mixed", "partitions": [{"partition": 1, "partition_max_bytes": 9}]}]
        answer = await client.ask(ApiKey.FETCH, 12, max_wait=50, session_epoch=-1, topics=wanted)
        assert int(answer.responses[0].partitions[0].error_code) == away
        wanted = [{"name": "mixed", "partitions": [{"partition_index": 1, "timestamp": -1}]}]
        answer = await client.ask(ApiKey.LIST_OFFSETS, 7, topics=wanted)
        assert int(answer.topics[0].partitions[0].error_code) == away

    run(scenario)


def fetched(records: dict[tuple[bytes, int], bytes]) -> Any:
    def answer(request: Any, payload: memoryview) -> Any:
        response, pieces = leader_pb2.FetchResponse(), []
        for entry in request.partitions:
            data = records.get((entry.topic_id, entry.partition), b"")
            response.partitions.add(
                topic_id=entry.topic_id,
                partition=entry.partition,
                high_watermark=50,
                last_stable_offset=50,
                records_length=len(data),
            )
            pieces.append(data)
        return response, pieces

    return answer


@pytest.mark.parametrize("version", versions_of(ApiKey.FETCH))
def test_fetch_at_several_leaders(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = fetched({(TOPIC_ID, 2): b"orders2", (OTHER_TOPIC_ID, 0): b"mixed0"})
        harness.leaders[2].answers["Fetch"] = fetched({(OTHER_TOPIC_ID, 1): b"mixed1"})

        def wanted(name: str, topic_id: Any, *partitions: int) -> dict[str, Any]:
            named = {"topic_id": topic_id} if version >= 13 else {"topic": name}
            entries = [{"partition": part, "fetch_offset": 5, "partition_max_bytes": 100} for part in partitions]
            return {**named, "partitions": entries}

        topics = [
            wanted("mixed", OTHER_TOPIC_ID, 1, 0),
            wanted("orders", TOPIC_ID, 2, 8),
            wanted("missing", unknown_id(), 0),
        ]
        session = {"session_epoch": -1} if version >= 7 else {}
        answer = await harness.client().ask(ApiKey.FETCH, version, max_wait=500, min_bytes=1, topics=topics, **session)
        found = [
            [(part.partition_index, int(part.error_code), bytes(part.records)) for part in response.partitions]
            for response in answer.responses
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found == [
            [(1, 0, b"mixed1"), (0, 0, b"mixed0")],
            [(2, 0, b"orders2"), (8, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")],
            [(0, unknown, b"")],
        ]
        if version >= 7:
            assert answer.session_id == 0

    run(scenario)


def test_fetch_waits_for_the_first_leader_that_has_records() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.leaders[1].answers["Fetch"] = fetched({})

        async def later(request: Any, payload: memoryview) -> Any:
            if request.max_wait_ms:
                await event.wait()
                return fetched({(OTHER_TOPIC_ID, 1): b"late"})(request, payload)
            return fetched({})(request, payload)

        harness.leaders[2].answers["Fetch"] = later
        entries = [{"partition": part, "partition_max_bytes": 100} for part in (0, 1)]
        topics = [{"topic_id": OTHER_TOPIC_ID, "partitions": entries}]
        future = harness.client().send(ApiKey.FETCH, 13, max_wait=9_000, min_bytes=1, session_epoch=-1, topics=topics)
        await harness.settle()
        assert not future.done()
        event.set()
        answer = await asyncio.wait_for(future, 5)
        assert [bytes(part.records) for part in answer.responses[0].partitions] == [b"", b"late"]

    run(scenario)


def test_there_are_no_fetch_sessions() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for session_id, epoch in ((5, 2), (0, 1)):
            answer = await harness.client().ask(ApiKey.FETCH, 13, session_id=session_id, session_epoch=epoch)
            assert int(answer.error_code) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(scenario)


@pytest.mark.parametrize(("session_id", "epoch"), [(0, -1), (0, 0), (5, 0), (5, -1), (-1, -1)])
def test_a_request_that_begins_or_ends_a_session_is_answered_in_full(session_id: int, epoch: int) -> None:
    """Whatever session it names (FetchManager.newContext); kafka-go names -1."""

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = fetched({(TOPIC_ID, 0): b"found"})
        topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]
        answer = await harness.client().ask(
            ApiKey.FETCH, 13, session_id=session_id, session_epoch=epoch, min_bytes=1, topics=topics
        )
        assert (int(answer.error_code), answer.session_id) == (0, 0)
        assert [bytes(part.records) for part in answer.responses[0].partitions] == [b"found"]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.LIST_OFFSETS))
def test_list_offsets(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def listed(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ListOffsetsResponse()
            for entry in request.partitions:
                answer.partitions.add(
                    topic_id=entry.topic_id, partition=entry.partition, timestamp=entry.timestamp, offset=41
                )
            return answer

        for leader in harness.leaders.values():
            leader.answers["ListOffsets"] = listed
        client = harness.client()

        async def ask(name: str, partition: int, timestamp: int) -> tuple[int, int]:
            wanted = [{"name": name, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}]
            answer = await client.ask(ApiKey.LIST_OFFSETS, version, topics=wanted)
            entry = answer.topics[0].partitions[0]
            return int(entry.error_code), entry.offset

        assert await ask("mixed", 1, -1) == (0, 41)
        assert await ask("mixed", 0, 12345) == (0, 41)
        assert await ask("missing", 0, -1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await ask("mixed", 2, -1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        refused = (ErrorCode.UNSUPPORTED_VERSION, -1)
        assert await ask("mixed", 0, -3) == ((0, 41) if version >= 7 else refused)
        assert await ask("mixed", 0, -4) == ((0, 41) if version >= 8 else refused)
        assert await ask("mixed", 0, -5) == ((0, -1) if version >= 9 else refused)
        assert await ask("mixed", 0, -99) == refused
        times = [request.partitions[0].timestamp for request in harness.leaders[1].requests("ListOffsets")]
        assert -4 not in times and -5 not in times

    run(scenario)
