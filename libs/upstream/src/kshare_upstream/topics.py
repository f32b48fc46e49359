"""Creation and deletion of topics of an existing cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode
from kshare_upstream.partition_log import Refused
from kshare_upstream.port import Upstream
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

CREATE_TOPICS = VersionRange(2, 7)
DELETE_TOPICS = VersionRange(1, 6)
DESCRIBE_CONFIGS = VersionRange(1, 4)
TIMEOUT_MS = 30_000
TOPIC_RESOURCE = 2
"""ConfigResource.Type.TOPIC."""
REPLICATION_FACTOR = "kshare.upstream.topic.replication.factor"
HIGHEST_REPLICATION_FACTOR = 3
"""The default of REPLICATION_FACTOR."""
MAX_MESSAGE_BYTES_CONFIG, MAX_MESSAGE_BYTES = "max.message.bytes", 1_048_588
"""Kafka's default, for brokers that have another one."""
MAX_BATCH_BYTES = 1_000_000
"""The largest batch that kshare writes to a log of its own."""
SEGMENT_BYTES = "104857600"
"""As of Kafka's `__share_group_state`: what kshare deletes frees its disk only with a whole segment."""
UNSHORTENED: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Configs of a log that the cluster itself removes nothing from."""


def replication_factor(broker_count: int, wanted: int = HIGHEST_REPLICATION_FACTOR) -> int:
    """As many replicas as wanted, or as there are live brokers."""
    return min(wanted, broker_count)


class Replicas(NamedTuple):
    """The replicas of kshare's own topics: REPLICATION_FACTOR."""

    wanted: int = HIGHEST_REPLICATION_FACTOR
    is_configured: bool = False
    """Whether the config is set. A topic then has this many replicas, or is not made while brokers are missing."""

    @staticmethod
    def of(configs: Configs) -> Replicas:
        return Replicas(configs.integer(REPLICATION_FACTOR), configs.is_set(REPLICATION_FACTOR))

    def for_new_topic(self, broker_count: int) -> int:
        """`broker_count` is that of live brokers: a view does not show others."""
        return self.wanted if self.is_configured else replication_factor(broker_count, self.wanted)


DEFAULT_REPLICAS = Replicas()


def too_few_replicas(topics: Sequence[str], count: int, wanted: int) -> str:
    """The warning about topics of kshare's that were made with fewer replicas than the default."""
    return (
        f"replication factor {count} instead of {wanted} for {', '.join(topics)}, because no more brokers were alive "
        f"when they were made; it stays when others start. Set {REPLICATION_FACTOR} before the first start, or "
        "add replicas with kafka-reassign-partitions.sh"
    )


def durable_configs(replicas: int) -> dict[str, str]:
    """Configs of a log that loses nothing while one of its replicas fails, and that only kshare shortens.

    `cleanup.policy` is never compact: the last record of a key may be one that its reader must ignore.
    """
    return {
        **UNSHORTENED,
        "min.insync.replicas": str(max(1, replicas - 1)),
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
        "segment.bytes": SEGMENT_BYTES,
        MAX_MESSAGE_BYTES_CONFIG: str(MAX_MESSAGE_BYTES),
    }


async def create_topic(
    upstream: Upstream,
    name: str,
    *,
    partitions: int,
    replicas: int,
    configs: Mapping[str, str],
    is_trial: bool = False,
) -> bool:
    """Creates a topic; False if it exists. Refused. `is_trial`: the cluster says whether it would, and does nothing."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=is_trial)
    answer = await upstream.ask_controller(request, CREATE_TOPICS)
    (result,) = answer.topics
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR and replicas > 0:
        what = f"CreateTopics of {name} with a replication factor of {replicas}"
        remedy = f"start the missing brokers, or set {REPLICATION_FACTOR} to the number of brokers"
        message = f"{result.error_message} {remedy}" if result.error_message else remedy
        raise Refused(result.error_code, what, message)
    if result.error_code:
        raise Refused(result.error_code, f"CreateTopics of {name}", result.error_message)
    return True


async def delete_topic(upstream: Upstream, name: str) -> None:
    """Deletes a topic; Refused."""
    request = DeleteTopicsRequest(topic_names=[name], topics=[DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
    answer = await upstream.ask_controller(request, DELETE_TOPICS)
    (result,) = answer.responses
    if result.error_code:
        raise Refused(result.error_code, f"DeleteTopics of {name}", result.error_message)


async def topic_config(upstream: Upstream, topic: str, config: str) -> str | None:
    """The effective value of a topic's config, None where the broker has none; Refused."""
    return (await topic_configs(upstream, topic, [config])).get(config)


async def topic_configs(upstream: Upstream, topic: str, names: Sequence[str]) -> dict[str, str]:
    """The effective values of these configs of a topic, without those that the broker does not have; Refused."""
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=list(names)
    )
    answer = await upstream.ask_any(DescribeConfigsRequest(resources=[resource]), DESCRIBE_CONFIGS)
    (result,) = answer.results
    if result.error_code:
        raise Refused(result.error_code, f"DescribeConfigs of {topic}", result.error_message)
    return {each.name: each.value for each in result.configs if each.name in names and each.value is not None}
