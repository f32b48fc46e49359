"""The destination partition of a share-partition's dead letters, and the config checks for it (KIP-1191).

The checks, in the order of Kafka's ShareGroupDLQStateManager.validateDlqTopic: the group has a dead-letter topic; its
name is not that of an internal topic; if the topic exists, its errors.deadletterqueue.group.enable is true; if it does
not, it may be created; its name has the prefix.

An existing cluster does not know errors.deadletterqueue.group.enable. Its topics may be used unless the catalog has the
config as false: the cluster's ACLs for kshare's principal and the prefix protect them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.topic import effective_topic_config
from kshare_core.identifiers import TopicPartition
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2

GROUP_ENABLE = "errors.deadletterqueue.group.enable"
CONFIGS_OF_CREATED = {"message.timestamp.type": "CreateTime"}
"""Configs of a dead-letter topic that is created, as in Kafka: a broker default does not change them."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The partition for the dead letters, its leader's address, and the size limit of a batch."""

    partition: TopicPartition
    address: str
    """Empty in an existing cluster, whose client knows the leader."""
    max_message_bytes: int
    topic_name: str = ""
    """The topic's name in an existing cluster, where it is the address."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Configs forbid the dead letters; the records are archived without them."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToBeCreated:
    """The topic does not exist and may be created."""

    topic_name: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The topic is valid, but no leader can append the dead letters now."""

    reason: str


def find_destination(
    view: CatalogView, broker: Configs, *, group_id: str, topic_name: str, source_partition: int
) -> Destination | Refused | ToBeCreated | Unreachable:
    """The destination of a partition's dead letters; `topic_name` is the group's dead-letter topic, or empty."""
    topic = view.topics_by_name.get(topic_name)
    found = _found(broker, group_id, topic_name, topic, enabled_by_default=False)
    if found is not None:
        return found
    assert topic is not None
    key = TopicPartition(topic.topic_id, source_partition % len(topic.partitions))
    address = view.leader_address(key)
    if address is None:
        return Unreachable(f"partition {key.partition} of dead-letter topic {topic_name} has no leader")
    return Destination(key, address, _configs(broker, topic).integer("max.message.bytes"))


def find_destination_in_cluster(
    view: CatalogView, broker: Configs, *, group_id: str, topic_name: str, source_partition: int, max_message_bytes: int
) -> Destination | Refused | ToBeCreated | Unreachable:
    """As `find_destination`, for a topic of the existing cluster; `max_message_bytes` is that of the topic."""
    topic = view.topics_by_name.get(topic_name)
    found = _found(broker, group_id, topic_name, topic, enabled_by_default=True)
    if found is not None:
        return found
    assert topic is not None
    key = TopicPartition(topic.topic_id, source_partition % len(topic.partitions))
    return Destination(key, "", max_message_bytes, topic_name)


def _found(
    broker: Configs,
    group_id: str,
    topic_name: str,
    topic: coordinator_pb2.Topic | None,
    *,
    enabled_by_default: bool,
) -> Refused | ToBeCreated | Unreachable | None:
    """None where the topic exists, may be used, and has partitions."""
    refusal = _refusal(broker, group_id, topic_name, topic, enabled_by_default=enabled_by_default)
    if refusal is not None:
        return Refused(refusal)
    if topic is None:
        return ToBeCreated(topic_name)
    if not topic.partitions:
        return Unreachable(f"dead-letter topic {topic_name} has no partitions")
    return None


def _refusal(
    broker: Configs,
    group_id: str,
    topic_name: str,
    topic: coordinator_pb2.Topic | None,
    *,
    enabled_by_default: bool,
) -> str | None:
    if not topic_name:
        return f"group {group_id!r} no longer has errors.deadletterqueue.topic.name"
    what = f"the dead-letter topic {topic_name!r} of group {group_id!r}"
    if topic_name.startswith("__"):
        return f"{what} must not start with __"
    if topic is not None and not _is_enabled(broker, topic, by_default=enabled_by_default):
        return f"{what} does not have {GROUP_ENABLE}=true"
    if topic is None and not broker.boolean("errors.deadletterqueue.auto.create.topics.enable"):
        return f"{what} does not exist, and errors.deadletterqueue.auto.create.topics.enable is false"
    prefix = broker.text("errors.deadletterqueue.topic.name.prefix")
    if not topic_name.startswith(prefix):
        return f"{what} must start with {prefix!r} (errors.deadletterqueue.topic.name.prefix)"
    return None


def _is_enabled(broker: Configs, topic: coordinator_pb2.Topic, *, by_default: bool) -> bool:
    if by_default and all(entry.name != GROUP_ENABLE for entry in topic.configs):
        return True
    return _configs(broker, topic).boolean(GROUP_ENABLE)


def _configs(broker: Configs, topic: coordinator_pb2.Topic) -> Configs:
    try:
        return effective_topic_config(broker, {entry.name: entry.value for entry in topic.configs})
    except InvalidConfig:  # the coordinator refuses such values, so this is another version's catalog
        return effective_topic_config(broker, {})
