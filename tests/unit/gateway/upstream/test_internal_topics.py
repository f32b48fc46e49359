"""Topics of kshare's are internal to clients of a gateway in front of a cluster, where they are ordinary ones."""

from __future__ import annotations

import asyncio

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic
from support.gateway.harness import GatewayHarness
from support.upstream.scripted_broker import ScriptedBroker

OWN = {"__mine_state", "__mine_metadata", "__mine_dead_letters"}
OTHERS = {"orders", "__mine_", "__mine_stated", "__kshare_state"}
INTERNAL_THERE = "__consumer_offsets"


def of_topics(broker: ScriptedBroker) -> MetadataResponse:
    answer = broker.metadata()
    topics = [MetadataResponseTopic(name=name) for name in sorted(OWN | OTHERS)]
    answer.topics = [*topics, MetadataResponseTopic(name=INTERNAL_THERE, is_internal=True)]
    return answer


def described() -> DescribeTopicPartitionsResponse:
    topics = [DescribeTopicPartitionsResponseTopic(name=name, partitions=[]) for name in sorted(OWN | OTHERS)]
    theirs = DescribeTopicPartitionsResponseTopic(name=INTERNAL_THERE, is_internal=True, partitions=[])
    return DescribeTopicPartitionsResponse(topics=[*topics, theirs], next_cursor=None)


@pytest.mark.parametrize(
    ("mode", "api", "version"),
    [
        ("share", ApiKey.METADATA, 12),
        ("proxy", ApiKey.METADATA, 12),
        ("proxy", ApiKey.METADATA, 1),
        ("proxy", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0),
    ],
)
def test_topics_of_the_prefix_are_internal(mode: str, api: ApiKey, version: int) -> None:
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.served[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = VersionRange(0, 0)
            broker.answers[ApiKey.METADATA] = lambda version, frame: of_topics(broker)
            broker.answers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = lambda version, frame: described()
            host, _, port = broker.address.rpartition(":")
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.mode": mode,
                "kshare.upstream.bootstrap.servers": broker.address,
                "kshare.upstream.topic.prefix": "__mine_",
            }
            async with GatewayHarness(
                configs,
                client_listen="127.0.0.1:0",
                open_upstream=lambda: Cluster([BrokerAddress(host, int(port))], ClientSettings()),
            ) as harness:
                answer = await harness.client().ask(api, version, topics=[] if api != ApiKey.METADATA else None)
                internal = {topic.name for topic in answer.topics if topic.is_internal}
                assert internal == OWN | {INTERNAL_THERE}
                assert {topic.name for topic in answer.topics} == OWN | OTHERS | {INTERNAL_THERE}

    asyncio.run(asyncio.wait_for(scenario(), 20))
