"""`__share_delivery_history` at the gateway: a topic with leaders that every client can read and none can change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run, topic
from support.wire.record_building import build_batch

HISTORY_ID = b"history-00000001"


def with_history_topic(scenario: Callable[[GatewayHarness], Awaitable[None]]) -> None:
    """Partition 0 is leader 1's; the leader of partition 1 is gone."""

    async def whole(harness: GatewayHarness) -> None:
        made = topic(HISTORY_TOPIC, HISTORY_ID, [1, 99])
        made.internal = True
        harness.catalog.topics[HISTORY_TOPIC] = made
        harness.catalog.change()
        await harness.settle()
        await scenario(harness)

    run(whole)


def test_it_is_internal_and_has_the_leaders_of_the_catalog() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=[{"name": HISTORY_TOPIC}])
        (found,) = answer.topics
        assert (found.is_internal, found.topic_id.bytes) == (True, HISTORY_ID)
        assert [(one.leader_epoch, one.error_code) for one in found.partitions] == [
            (3, ErrorCode.NONE),
            (3, ErrorCode.LEADER_NOT_AVAILABLE),
        ]
        assert found.partitions[0].leader_id >= 0

    with_history_topic(scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_produce_is_refused(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        named = {"topic_id": HISTORY_ID} if version >= 13 else {"name": HISTORY_TOPIC}
        partition = {"index": 0, "records": build_batch([b"mine"])}
        answer = await harness.client().ask(
            ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=[{**named, "partition_data": [partition]}]
        )
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert all(role.calls == [] for role in harness.leaders.values())

    with_history_topic(scenario)


def test_deletion_of_the_topic_or_its_records_is_refused() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        deleted = await client.ask(
            ApiKey.DELETE_TOPICS, 6, timeout=1000, topics=[{"name": None, "topic_id": HISTORY_ID}]
        )
        (result,) = deleted.responses
        assert (result.name, result.error_code) == (HISTORY_TOPIC, ErrorCode.INVALID_REQUEST)
        emptied = await client.ask(
            ApiKey.DELETE_RECORDS,
            2,
            timeout=1000,
            topics=[{"name": HISTORY_TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}],
        )
        assert emptied.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert all(role.calls == [] for role in harness.leaders.values())

    with_history_topic(scenario)
