"""A leader that does not know a topic yet, or any more: clients that named the topic are told so by Kafka's code.

Only clients that asked by id know what UNKNOWN_TOPIC_ID is about; to others it would be the end of their records.
"""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayHarness, run

UNKNOWN_TO_LEADER = {"error_code": ErrorCode.UNKNOWN_TOPIC_ID}


def refusing(response_type: Any) -> Any:
    def answer(request: Any, payload: memoryview) -> Any:
        response = response_type()
        for entry in request.partitions:
            where = getattr(response, "results" if hasattr(response, "results") else "partitions")
            where.add(topic_id=entry.topic_id, partition=entry.partition, **UNKNOWN_TO_LEADER)
        return response

    return answer


@pytest.mark.parametrize("version", [9, 12, 13])
def test_produce(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Produce"] = refusing(leader_pb2.ProduceResponse)
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}
        data = [{**named, "partition_data": [{"index": 0, "records": bytes(90)}]}]
        answer = await harness.client().ask(ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=data)
        check(version >= 13, answer.responses[0].partition_responses[0].error_code)

    run(scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_fetch(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = refusing(leader_pb2.FetchResponse)
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "orders"}
        topics = [{**named, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}]}]
        answer = await harness.client().ask(ApiKey.FETCH, version, max_wait=0, min_bytes=1, topics=topics)
        check(version >= 13, answer.responses[0].partitions[0].error_code)

    run(scenario)


def test_list_offsets_and_delete_records() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["ListOffsets"] = refusing(leader_pb2.ListOffsetsResponse)
        harness.leaders[1].answers["DeleteRecords"] = refusing(leader_pb2.DeleteRecordsResponse)
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        answer = await harness.client().ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        check(False, answer.topics[0].partitions[0].error_code)
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
        deleted = await harness.client().ask(ApiKey.DELETE_RECORDS, 2, timeout=1000, topics=topics)
        check(False, deleted.topics[0].partitions[0].error_code)

    run(scenario)


def check(asked_by_id: bool, code: int) -> None:
    expected = ErrorCode.UNKNOWN_TOPIC_ID if asked_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert int(code) == expected
