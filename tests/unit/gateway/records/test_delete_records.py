"""DeleteRecords at the gateway: each partition goes to its leader; partitions without one get an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

TIMEOUT_MS = 5_000


def deleted(request: Any, payload: memoryview) -> Any:
    """What is asked for is the low watermark; partition 2 says what the test needs of errors."""
    answer = leader_pb2.DeleteRecordsResponse()
    for entry in request.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_ID if entry.partition == 2 else ErrorCode.NONE
        answer.results.add(
            topic_id=entry.topic_id,
            partition=entry.partition,
            low_watermark=-1 if code else entry.offset,
            error_code=code,
        )
    return answer


def wanted(name: str, *partitions: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [{"partition_index": partition, "offset": offset} for partition, offset in partitions],
    }


def results(answer: Any) -> list[tuple[str, int, int, int]]:
    return [
        (topic.name, entry.partition_index, entry.low_watermark, int(entry.error_code))
        for topic in answer.topics
        for entry in topic.partitions
    ]


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_RECORDS))
def test_each_leader_is_asked_once_for_its_partitions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for leader in harness.leaders.values():
            leader.answers["DeleteRecords"] = deleted
        topics = [
            wanted("orders", (0, 5), (1, 6), (2, 7), (9, 8)),
            wanted("missing", (0, 1)),
            wanted("mixed", (0, -1), (1, 9)),
        ]
        answer = await harness.client().ask(ApiKey.DELETE_RECORDS, version, topics=topics, timeout=TIMEOUT_MS)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert results(answer) == [
            ("orders", 0, 5, 0),
            ("orders", 1, 6, 0),
            ("orders", 2, -1, missing),
            ("orders", 9, -1, missing),
            ("missing", 0, -1, missing),
            ("mixed", 0, -1, 0),
            ("mixed", 1, 9, 0),
        ]
        first, second = (harness.leaders[node_id].requests("DeleteRecords") for node_id in (1, 2))
        assert [[(entry.topic_id, entry.partition, entry.offset) for entry in asked.partitions] for asked in first] == [
            [(TOPIC_ID, 0, 5), (TOPIC_ID, 1, 6), (TOPIC_ID, 2, 7), (OTHER_TOPIC_ID, 0, -1)]
        ]
        assert [
            [(entry.topic_id, entry.partition, entry.offset) for entry in asked.partitions] for asked in second
        ] == [[(OTHER_TOPIC_ID, 1, 9)]]

    run(scenario)


def test_a_leader_that_is_away_or_too_slow_does_not_keep_the_others_answers() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        async def late(request: Any, payload: memoryview) -> Any:
            await asyncio.Event().wait()

        harness.leaders[1].answers["DeleteRecords"] = late
        harness.leaders[2].answers["DeleteRecords"] = deleted
        topics = [wanted("mixed", (0, 3), (1, 4))]
        client = harness.client()
        answer = await client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=50)
        assert results(answer) == [("mixed", 0, -1, ErrorCode.REQUEST_TIMED_OUT), ("mixed", 1, 4, 0)]

        def broken(request: Any, payload: memoryview) -> Any:
            raise RuntimeError("a bug")

        harness.leaders[1].answers["DeleteRecords"] = broken
        answer = await client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=TIMEOUT_MS)
        assert results(answer) == [("mixed", 0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER), ("mixed", 1, 4, 0)]

        del harness.catalog.leaders[1]
        harness.catalog.change()
        await harness.settle()
        answer = await client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=TIMEOUT_MS)
        assert results(answer) == [("mixed", 0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER), ("mixed", 1, 4, 0)]

    run(scenario)
