"""Produce of transactional producers, Fetch with isolation levels, and DescribeProducers, through real bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_gateway.connections.request_parts import REPETITIONS
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

BATCH = bytes(range(200))


@pytest.mark.parametrize("version", versions_of(ApiKey.PRODUCE))
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_produce_tells_the_leader_of_the_transaction(version: int, code: ErrorCode) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def produced(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ProduceResponse()
            for entry in request.partitions:
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, error_code=code)
            return answer

        harness.leaders[1].answers["Produce"] = produced
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}
        data = [{**named, "partition_data": [{"index": 0, "records": BATCH}]}]
        answer = await harness.client().ask(
            ApiKey.PRODUCE, version, acks=-1, timeout=1000, transactional_id="pay", topic_data=data
        )
        (request,) = harness.leaders[1].requests("Produce")
        assert (request.transactional_id, request.add_to_transaction) == ("pay", version >= 12)
        expected = code
        if code == ErrorCode.TRANSACTION_ABORTABLE and version < 11:
            expected = ErrorCode.INVALID_TXN_STATE
        assert int(answer.responses[0].partition_responses[0].error_code) == expected

    run(scenario)


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_fetch_passes_the_isolation_level_and_the_aborted_transactions(isolation_level: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def fetched(request: Any, payload: memoryview) -> Any:
            response = leader_pb2.FetchResponse()
            for entry in request.partitions:
                response.partitions.add(
                    topic_id=entry.topic_id,
                    partition=entry.partition,
                    high_watermark=50,
                    last_stable_offset=40,
                    records_length=len(BATCH),
                    aborted_transactions=[
                        leader_pb2.FetchResponse.AbortedTransaction(producer_id=7, first_offset=3),
                        leader_pb2.FetchResponse.AbortedTransaction(producer_id=8, first_offset=5),
                    ],
                )
            return response, [BATCH]

        harness.leaders[1].answers["Fetch"] = fetched
        topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
        answer = await harness.client().ask(
            ApiKey.FETCH, 13, max_wait=0, session_epoch=-1, isolation_level=isolation_level, topics=topics
        )
        (request,) = harness.leaders[1].requests("Fetch")
        assert request.isolation_level == isolation_level
        found = answer.responses[0].partitions[0]
        assert (found.high_watermark, found.last_stable_offset) == (50, 40)
        aborted = found.aborted_transactions
        if isolation_level == 0:
            assert not aborted
        else:
            assert [(entry.producer_id, entry.first_offset) for entry in aborted] == [(7, 3), (8, 5)]

    run(scenario)


@pytest.mark.parametrize("repetitions", [0, 3, 2_000])
def test_describe_producers_asks_each_leader_and_names_what_is_missing(repetitions: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def described(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.DescribeProducersResponse()
            for entry in request.partitions:
                result = answer.results.add(topic_id=entry.topic_id, partition=entry.partition)
                if entry.partition == 2:
                    result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    result.error_message = "moved"
                    continue
                result.active_producers.add(
                    producer_id=9,
                    producer_epoch=4,
                    last_sequence=17,
                    last_timestamp=1234,
                    coordinator_epoch=-1,
                    current_transaction_start_offset=88,
                )
            return answer

        for leader in harness.leaders.values():
            leader.answers["DescribeProducers"] = described
        topics = [
            {"name": "mixed", "partition_indexes": [1, 0]},
            {"name": "orders", "partition_indexes": [2, 9]},
            {"name": "missing", "partition_indexes": [0]},
        ]
        again = [{"name": "mixed", "partition_indexes": [0, 1, 0]}] * repetitions
        answer = await harness.client().ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[*topics, *again])
        found = [
            (topic.name, [(part.partition_index, int(part.error_code)) for part in topic.partitions])
            for topic in answer.topics
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found[:3] == [
            ("mixed", [(1, 0), (0, 0)]),
            ("orders", [(2, ErrorCode.NOT_LEADER_OR_FOLLOWER), (9, unknown)]),
            ("missing", [(0, unknown)]),
        ]
        (producer,) = answer.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (9, 4, 17)
        assert (producer.last_timestamp, producer.coordinator_epoch) == (1234, -1)
        assert producer.current_txn_start_offset == 88
        assert answer.topics[1].partitions[0].error_message == "moved"
        asked = {
            node: Counter(
                (entry.topic_id, entry.partition)
                for request in leader.requests("DescribeProducers")
                for entry in request.partitions
            )
            for node, leader in harness.leaders.items()
        }
        of_0, of_1 = min(1 + 2 * repetitions, REPETITIONS), min(1 + repetitions, REPETITIONS)
        assert asked == {1: {(OTHER_TOPIC_ID, 0): of_0, (TOPIC_ID, 2): 1}, 2: {(OTHER_TOPIC_ID, 1): of_1}}
        assert sum(len(topic.partitions) for topic in answer.topics if topic.name == "mixed") == of_0 + of_1

    run(scenario)
