"""A gateway's metrics, by value after known requests."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode
from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.error_codes import error_codes, error_codes_in_slices
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, run
from support.gateway.scripted_leader import FakeLeader, fetched, listed, play, raw_batch
from support.servicekit.scraped import Scraped, measured, scraped
from support.wire.typed_messages import ALL_REQUESTS, message_of

METADATA = {"api": "Metadata", "version": "12"}


async def scrape(harness: GatewayHarness) -> Scraped:
    metrics = measured()
    harness.node.register_metrics(metrics)
    return await scraped(metrics)


def test_requests_errors_connections_and_bytes() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        before = await scrape(harness)
        assert before.value("gateway_connections") == 0
        client, other = harness.client(), harness.client()
        for name in ("orders", "nowhere", "nobody"):
            await client.ask(3, 12, topics=[{"topic_id": None, "name": name}], allow_auto_topic_creation=False)
        found = await scrape(harness)
        assert found.value("gateway_request_duration_seconds_count", **METADATA) == 3
        assert found.value("gateway_errors_total", api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION") == 2
        assert found.value("gateway_connections") == found.value("gateway_connections_accepted_total") == 2
        assert found.value("gateway_requests_under_way") == 0
        assert found.value("gateway_received_bytes_total") > 100
        assert found.value("gateway_sent_bytes_total") > 100
        assert found.value("node_healthy", role="gateway", node_id="7") == 1
        client.connection.data_received(b"\0\0\0\4\xff\xff\0\0")
        other.lose()
        client.lose()
        found = await scrape(harness)
        assert found.value("gateway_connections_closed_by_gateway_total") == 1
        assert found.value("gateway_connections") == 0
        assert found.value("gateway_connections_accepted_total") == 2

    run(scenario)


def test_connections_beyond_the_limit_are_refused() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.client()
        assert harness.client().transport.is_closed
        found = await scrape(harness)
        assert found.value("gateway_connections_refused_total") == 1
        assert found.value("gateway_connections_accepted_total") == 1

    run(scenario, {"max.connections": "1"})


def test_share_sessions_the_cache_and_requests_under_way() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[(TOPIC_ID, 0)] = 2
        size = len(raw_batch(0, 9))
        await fetched(client, 0, listed(TOPIC_ID, 0))
        await harness.settle()
        await fetched(client, 1)
        found = await scrape(harness)
        assert found.value("gateway_share_sessions") == 1
        assert found.value("gateway_cache_miss_bytes_total") == size
        assert found.value("gateway_cache_hit_bytes_total") == size
        assert found.value("gateway_read_ahead_bytes_total") >= size
        assert found.value("gateway_cache_bytes") >= 2 * size
        assert found.value("gateway_read_ahead_failures_total") == 0
        requests = found.total("gateway_request_duration_seconds_count", api="ShareFetch")
        assert requests == 2
        waiting = asyncio.ensure_future(fetched(client, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await scrape(harness)).value("gateway_requests_under_way") == 1
        await waiting

    play(scenario)


def test_error_codes_wherever_they_are() -> None:
    unknown, fenced = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH
    partitions = [
        {"partition_index": 0, "error_code": 0, "acknowledge_error_code": fenced},
        {"partition_index": 1, "error_code": unknown},
    ]
    shares = ALL_REQUESTS[ApiKey.SHARE_FETCH].RESPONSE
    body = {"error_code": 0, "responses": [{"topic_id": TOPIC_ID, "partitions": partitions}]}
    assert error_codes(message_of(shares, body)) == [fenced, unknown]
    assert error_codes(message_of(shares, {"error_code": unknown})) == [unknown]
    for request in ALL_REQUESTS.values():
        assert error_codes(request.RESPONSE()) == []


def test_error_codes_of_a_long_answer_are_found_in_slices() -> None:
    code = int(ErrorCode.INVALID_REQUEST)
    partitions = [{"partition_index": index, "error_code": code if index % 2 else 0} for index in range(3_000)]
    topics = [{"topic_id": TOPIC_ID, "partitions": partitions}, {"topic_id": TOPIC_ID, "partitions": partitions[:10]}]
    body = {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "responses": topics}
    response = message_of(ALL_REQUESTS[ApiKey.SHARE_FETCH].RESPONSE, body)
    steps = error_codes_in_slices(response)
    slices = 0
    try:
        while True:
            next(steps)
            slices += 1
    except StopIteration as end:
        assert sorted(end.value) == sorted(error_codes(response))
    assert slices == 3_012 // SLICE_ELEMENTS
