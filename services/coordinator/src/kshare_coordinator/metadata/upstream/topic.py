"""The topic of the metadata: partition 0 is the log, partition 1 has the addresses of live coordinators."""

from __future__ import annotations

import logging

from kshare_core.errors import StorageFailure
from kshare_upstream.own_topics import OwnTopic, WrongTopic, create_own_topics
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import Replicas

LOG_PARTITION, MEMBERS_PARTITION = 0, 1

log = logging.getLogger(__name__)


async def ensure_topic(upstream: Upstream, topic: OwnTopic, replicas: Replicas) -> None:
    """Creates the topic if there is none; StorageFailure if it cannot hold metadata; Refused, ConnectionLost."""
    try:
        await create_own_topics(upstream, [topic], replicas, log.warning)
    except WrongTopic as problem:
        raise StorageFailure(str(problem)) from problem


def log_partition(topic: str) -> UpstreamPartitionName:
    return UpstreamPartitionName(topic, LOG_PARTITION)


def members_partition(topic: str) -> UpstreamPartitionName:
    return UpstreamPartitionName(topic, MEMBERS_PARTITION)
