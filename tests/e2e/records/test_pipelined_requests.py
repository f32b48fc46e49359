"""Pipelined requests of one connection: each sees what the one before it changed, as in Kafka."""

from __future__ import annotations

from typing import Any

from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic
from support.clients.kafka_requests import KafkaRequests
from support.clients.raw_kafka import record_with_key

ROUNDS = 30
EARLIEST, LATEST = -2, -1

Asked = tuple[int, int, dict[str, Any]]


def of_partition(topic: str, **fields: Any) -> dict[str, Any]:
    return {"topics": [{"name": topic, "partitions": [{"partition_index": 0, **fields}]}]}


def produce(topic: str, acks: int = -1) -> Asked:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": record_with_key()}]}]
    return ApiKey.PRODUCE, 9, {"acks": acks, "timeout": 10_000, "topic_data": data}


def list_offsets(topic: str, timestamp: int) -> Asked:
    return ApiKey.LIST_OFFSETS, 7, of_partition(topic, timestamp=timestamp)


def listed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


def test_the_end_of_a_log_is_behind_what_was_produced_before(bootstrap: str) -> None:
    create_topic(bootstrap, "pipelined-produce", 1)
    with KafkaRequests(bootstrap) as requests:
        for count in range(1, ROUNDS + 1):
            _, answer = requests.ask_together(produce("pipelined-produce"), list_offsets("pipelined-produce", LATEST))
            assert listed(answer) == count


def test_the_start_of_a_log_is_behind_what_was_deleted_before(bootstrap: str) -> None:
    create_topic(bootstrap, "pipelined-delete", 1)
    with KafkaRequests(bootstrap) as requests:
        requests.ask_together(*[produce("pipelined-delete")] * ROUNDS)
        for offset in range(1, ROUNDS):
            values = {**of_partition("pipelined-delete", offset=offset), "timeout": 10_000}
            _, answer = requests.ask_together(
                (ApiKey.DELETE_RECORDS, 2, values), list_offsets("pipelined-delete", EARLIEST)
            )
            assert listed(answer) == offset


def test_a_committed_offset_is_the_one_that_was_committed_before(bootstrap: str) -> None:
    create_topic(bootstrap, "pipelined-commit", 1)
    group = {"group_id": "pipelined-commit"}
    fetch = ApiKey.OFFSET_FETCH, 5, {**group, "topics": [{"name": "pipelined-commit", "partition_indexes": [0]}]}
    with KafkaRequests(bootstrap) as requests:
        for offset in range(ROUNDS):
            offsets = of_partition("pipelined-commit", committed_offset=offset, committed_leader_epoch=-1)
            values = {**group, "generation_id_or_member_epoch": -1, **offsets}
            committed, fetched = requests.ask_together((ApiKey.OFFSET_COMMIT, 8, values), fetch)
            assert committed.topics[0].partitions[0].error_code == 0
            assert fetched.topics[0].partitions[0].committed_offset == offset
