"""The internal topics `__share_group_state` and `__consumer_offsets`: visible to every client, but on no leader.

They are not in the catalog's topics. `__consumer_offsets` has the partitions and configs of Kafka (offsets.topic.*),
but its content cannot be read: committed offsets and groups are rows of the coordinator, not records. ListOffsets and
Fetch of it are TOPIC_AUTHORIZATION_FAILED, which stops a consumer with a clear error.

`__share_group_state` can be read. It exists as soon as the catalog has state partitions, with as many partitions. Its
id is the same in every cluster and its configs are those of Kafka (ShareCoordinatorService.shareGroupStateTopicConfigs
of 4.3.1). Each partition's leader is a gateway, as with any topic, always with epoch 0: which share coordinator answers
changes nothing for clients. The share coordinators return the records in Kafka's format
(`kshare_share_coordinator.state_topic`).

Clients may read it and its configs, and change nothing: Produce and DeleteRecords are INVALID_TOPIC_EXCEPTION, as in
Kafka's ReplicaManager; DeleteTopics and CreatePartitions, which Kafka allows an administrator, are INVALID_REQUEST.

`__share_delivery_history` is a topic of the catalog, with leaders and logs like others. Clients may do with it only
what is said here, except that its configs may be altered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from kshare_core.configs import config_text
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    CONSUMER_OFFSETS_TOPIC_ID,
    INTERNAL_TOPICS,
    STATE_TOPIC,
    STATE_TOPIC_ID,
)
from kshare_gateway.gateway import Gateway
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import FETCH, FETCH_STATE_TOPIC, LIST_OFFSETS, LIST_STATE_TOPIC_OFFSETS
from kshare_rpc.network import Method

LEADER_EPOCH = 0
NO_LEADER_ROLE = -1

Topic = coordinator_pb2.Topic


class RecordSource(NamedTuple):
    """The owner of a partition's records, a leader or a share coordinator, and the call that reads them."""

    address: str
    fetch: Method[leader_pb2.FetchRequest, leader_pb2.FetchResponse] = FETCH
    list_offsets: Method[leader_pb2.ListOffsetsRequest, leader_pb2.ListOffsetsResponse] = LIST_OFFSETS


def topic_named(gateway: Gateway, name: str) -> Topic | None:
    """The topic as clients see it, internal or not."""
    topic_id = INTERNAL_TOPICS.get(name)
    return gateway.view.topics_by_name.get(name) if topic_id is None else topic_with_id(gateway, topic_id)


def topic_with_id(gateway: Gateway, topic_id: bytes) -> Topic | None:
    """The topic as clients see it, internal or not."""
    if topic_id == STATE_TOPIC_ID:
        return _state_topic(gateway)
    if topic_id == CONSUMER_OFFSETS_TOPIC_ID:
        return _consumer_offsets_topic(gateway)
    return gateway.view.topics_by_id.get(topic_id)


def internal_name(view: CatalogView, asked: str | bytes) -> str | None:
    """The name of an internal topic by its name or id; None for all others."""
    known = view.topics_by_id.get(asked) if isinstance(asked, bytes) else view.topics_by_name.get(asked)
    if known is not None:
        return known.name if known.internal else None
    return next((name for name, topic_id in INTERNAL_TOPICS.items() if asked in (name, topic_id)), None)


def all_topics(gateway: Gateway) -> list[Topic]:
    """Every topic that clients see, by name; sorting a hundred thousand takes tens of milliseconds."""
    return sorted(unsorted_topics(gateway), key=lambda topic: topic.name)


def unsorted_topics(gateway: Gateway) -> list[Topic]:
    """Every topic that clients see."""
    internal = [topic for topic_id in INTERNAL_TOPICS.values() if (topic := topic_with_id(gateway, topic_id))]
    return [*gateway.view.topics_by_name.values(), *internal]


def record_source(gateway: Gateway, key: TopicPartition) -> tuple[RecordSource | None, ErrorCode]:
    """The source of a partition's records, or an error code that makes clients refresh their metadata."""
    if key.topic_id == CONSUMER_OFFSETS_TOPIC_ID:
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if key.topic_id != STATE_TOPIC_ID:
        address, code = gateway.leader_of(key)
        return (None, code) if code else (RecordSource(address), ErrorCode.NONE)
    topic = _state_topic(gateway)
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= key.partition < len(topic.partitions):
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = state_partition_address(gateway.view, key.partition)
    if found is None:
        return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
    return RecordSource(found, FETCH_STATE_TOPIC, LIST_STATE_TOPIC_OFFSETS), ErrorCode.NONE


def state_partition_address(view: CatalogView, state_partition: int) -> str | None:
    """The share coordinator that owns a partition of `__share_group_state`; None while no live one does."""
    owner = view.state_partition_owners.get(state_partition)
    node = None if owner is None else view.node(coordinator_pb2.ROLE_SHARE_COORDINATOR, owner)
    return node.rpc_address if node else None


def internal_topic_broker(view: CatalogView, topic: Topic, partition: int, listener: str) -> int:
    """The gateway that clients of a listener are told for a partition of an internal topic, -1: there is none."""
    gateways = view.gateways(listener)
    if not gateways or (topic.topic_id == STATE_TOPIC_ID and state_partition_address(view, partition) is None):
        return -1
    return gateways[crc32(partition.to_bytes(4, "big")) % len(gateways)].node_id


def _state_topic(gateway: Gateway) -> Topic | None:
    count = gateway.view.state_partition_count
    if count <= 0:
        return None
    configs = (
        "cleanup.policy=delete",
        "compression.type=producer",
        f"min.insync.replicas={config_text(gateway.configs['share.coordinator.state.topic.min.isr'])}",
        "retention.ms=-1",
        f"segment.bytes={config_text(gateway.configs['share.coordinator.state.topic.segment.bytes'])}",
    )
    return _build(STATE_TOPIC, count, configs)


def _consumer_offsets_topic(gateway: Gateway) -> Topic:
    configs = (
        "cleanup.policy=compact",
        "compression.type=producer",
        f"segment.bytes={config_text(gateway.configs['offsets.topic.segment.bytes'])}",
    )
    count = gateway.configs.integer("offsets.topic.num.partitions")
    return _build(CONSUMER_OFFSETS_TOPIC, count, configs)


@lru_cache(maxsize=8)
def _build(name: str, partition_count: int, configs: tuple[str, ...]) -> Topic:
    """`configs` as `key=value`, by name."""
    return Topic(
        topic_id=INTERNAL_TOPICS[name],
        name=name,
        partitions=[
            Topic.Partition(partition=index, leader_node_id=NO_LEADER_ROLE, leader_epoch=LEADER_EPOCH)
            for index in range(partition_count)
        ],
        configs=[coordinator_pb2.ConfigEntry(name=key, value=value) for key, _, value in map(_parted, configs)],
        internal=True,
    )


def _parted(config: str) -> tuple[str, str, str]:
    return config.partition("=")
