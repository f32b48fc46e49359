"""The topic of the metadata: partition 0 is the log, partition 1 has the addresses of live coordinators."""

from __future__ import annotations

from kshare_core.errors import StorageFailure
from kshare_upstream.own_topics import OwnTopic, WrongTopic, create_own_topics
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

LOG_PARTITION, MEMBERS_PARTITION = 0, 1
DESCRIBE_CONFIGS = VersionRange(1, 4)
TOPIC_RESOURCE = 2
CLEANUP_POLICY = "cleanup.policy"


async def ensure_topic(upstream: Upstream, topic: OwnTopic, wanted_replicas: int) -> None:
    """Creates the topic if there is none; StorageFailure if it cannot hold metadata; Refused, ConnectionLost."""
    try:
        await create_own_topics(upstream, [topic], wanted_replicas)
    except WrongTopic as problem:
        raise StorageFailure(str(problem)) from problem
    await _check_policy(upstream, topic.name)


async def _check_policy(upstream: Upstream, name: str) -> None:
    """StorageFailure if the topic is compacted: the last record of a key may be one that does not count."""
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=[CLEANUP_POLICY]
    )
    answer = await upstream.ask_any(DescribeConfigsRequest(resources=[resource]), DESCRIBE_CONFIGS)
    (result,) = answer.results
    policy = next((config.value or "" for config in result.configs if config.name == CLEANUP_POLICY), "")
    if not result.error_code and "compact" in policy:
        raise StorageFailure(f"{CLEANUP_POLICY} of topic {name} is {policy}, and must be delete")


def log_partition(topic: str) -> UpstreamPartitionName:
    return UpstreamPartitionName(topic, LOG_PARTITION)


def members_partition(topic: str) -> UpstreamPartitionName:
    return UpstreamPartitionName(topic, MEMBERS_PARTITION)
