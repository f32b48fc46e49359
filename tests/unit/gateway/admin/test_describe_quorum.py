"""DescribeQuorum: one voter, which is the controller that Metadata names, and the catalog's version as its log."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run, versions_of

QUORUM = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_QUORUM))
def test_the_controller_is_the_only_voter(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        (topic,) = (await client.ask(ApiKey.DESCRIBE_QUORUM, version, topics=[QUORUM])).topics
        (quorum,) = topic.partitions
        controller = (await client.ask(ApiKey.METADATA, 12, topics=())).controller_id
        assert (topic.topic_name, quorum.partition_index, int(quorum.error_code)) == ("__cluster_metadata", 0, E.NONE)
        assert quorum.leader_id == controller == 7
        assert [voter.replica_id for voter in quorum.current_voters] == [7]
        assert quorum.high_watermark == quorum.current_voters[0].log_end_offset > 0
        assert quorum.observers == ()
        harness.catalog.change()
        await harness.settle()
        (topic,) = (await client.ask(ApiKey.DESCRIBE_QUORUM, version, topics=[QUORUM])).topics
        assert topic.partitions[0].high_watermark > quorum.high_watermark

    run(scenario)


def test_version_2_names_the_voters_address() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.DESCRIBE_QUORUM, 2, topics=[QUORUM])
        (node,) = answer.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.name) == (7, "PLAINTEXT")
        assert (listener.host, listener.port) == ("gateway.example", 9092)

    run(scenario)


@pytest.mark.parametrize(
    "topics",
    [
        [{"topic_name": "orders", "partitions": [{"partition_index": 0}]}],
        [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}],
        [QUORUM, {"topic_name": "orders", "partitions": [{"partition_index": 2}]}],
    ],
)
def test_other_partitions_are_unknown(topics: list[dict[str, Any]]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
        codes = {int(entry.error_code) for topic in answer.topics for entry in topic.partitions}
        assert codes == {E.UNKNOWN_TOPIC_OR_PARTITION}
        assert [topic.topic_name for topic in answer.topics] == [topic["topic_name"] for topic in topics]

    run(scenario)
