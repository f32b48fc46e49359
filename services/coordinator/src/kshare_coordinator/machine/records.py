"""Constructors of coordinator records, and their encoding as rows of the store.

A record's key is serialized deterministically, so that equal keys address one row. A record without a value is a
tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshare_coordinator.machine.groups.classic.group import ClassicGroupInMemory
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_rpc.generated.kshare.v1 import security_pb2 as security_pb
from kshare_runtime.ports import Write

Record = records_pb.CoordinatorRecord
Key = records_pb.CoordinatorRecordKey
Value = records_pb.CoordinatorRecordValue


@dataclass(frozen=True, slots=True)
class CatalogLoaded:
    """The whole stored catalog, which replaces the one in memory."""

    found: Sequence[Record]


@dataclass(frozen=True, slots=True)
class CatalogFollowed:
    """Catalog records written by another coordinator."""

    found: Sequence[Record]


@dataclass(frozen=True, slots=True)
class GroupsGained:
    """A group partition that this coordinator now owns; `found` are all of its rows."""

    partition: int
    found: Sequence[Record]


@dataclass(frozen=True, slots=True)
class GroupsLost:
    """A group partition that this coordinator no longer owns; its groups are dropped from memory."""

    partition: int


InMemory = ClassicGroupInMemory | CatalogLoaded | CatalogFollowed | GroupsGained | GroupsLost
"""Changes that this coordinator does not store: in-memory changes, or rows stored by other coordinators."""
AnyRecord = Record | InMemory
"""Input of `replay`; a decision may hold records for the store, and ClassicGroupInMemory."""

FAMILY = "coordinator"

CLUSTER_ID = "cluster_id"
CATALOG_VERSION = "catalog_version"
EPOCH_COUNTER = "epoch_counter"
NEXT_PRODUCER_ID = "next_producer_id"
CATALOG_STARTS = "catalog_starts"
"""The newest starts of the active coordinator; see `catalog.starts`."""
STATE_PARTITION_COUNT = "state_partition_count"
UPSTREAM_CLUSTER_ID = "upstream_cluster_id"
"""The id of the existing cluster whose topics the catalog mirrors."""
UPSTREAM_IDS_PROVEN = "upstream_ids_proven"
"""1 when a topic has proved that a catalog of an older version has the existing cluster's ids; `mirrored_topics`."""
LEADER_NODE_EPOCH = "leader_node_epoch/"
"""Prefix: the newest epoch of a leader node, kept after the node is gone so that leader epochs never fall."""
DELETED_SHARE_GROUP_EPOCH = "deleted_share_group_epoch"
"""The highest state epoch of deleted share groups of the whole cluster, from when there was one such number."""
DELETED_SHARE_GROUP_EPOCH_OF_PARTITION = "deleted_share_group_epoch/"
"""Prefix: the same for the groups of one group partition; state epochs of new groups begin above both."""
DRAINING_SHARE_COORDINATOR = "draining_share_coordinator/"
"""Prefix: draining share coordinators; the value is the incarnation that was asked to drain."""
DRAINING_LEADER = "draining_leader/"
"""The same for leaders."""


def write_of(record: Record) -> Write:
    key = record.key.SerializeToString(deterministic=True)
    value = record.value.SerializeToString(deterministic=True) if record.HasField("value") else None
    return Write(FAMILY, key, value)


def record_of(key: bytes, value: bytes) -> Record:
    """The record of a stored row; StorageFailure if the bytes cannot be parsed."""
    try:
        return Record(key=Key.FromString(key), value=Value.FromString(value))
    except Exception as error:
        raise StorageFailure(f"a coordinator record cannot be read (key {key.hex()}): {error}") from error


def cluster_number(name: str, number: int) -> Record:
    return Record(key=Key(cluster=name), value=Value(cluster=records_pb.ClusterValue(number=number)))


def cluster_text(name: str, text: str) -> Record:
    return Record(key=Key(cluster=name), value=Value(cluster=records_pb.ClusterValue(text=text)))


def cluster_gone(name: str) -> Record:
    return Record(key=Key(cluster=name))


def topic(value: records_pb.TopicRecord) -> Record:
    return Record(key=Key(topic=value.topic_id), value=Value(topic=value))


def topic_gone(topic_id: bytes) -> Record:
    return Record(key=Key(topic=topic_id))


def group_config(value: pb.GroupConfig) -> Record:
    """The group's configs; a tombstone if none is left."""
    key = Key(group_config=value.group_id)
    return Record(key=key, value=Value(group_config=value)) if value.configs else Record(key=key)


def broker_config(value: pb.BrokerConfig) -> Record:
    """Configs of one broker, or of all (an empty id); a tombstone if none is left."""
    key = Key(broker_config=value.broker_id)
    return Record(key=key, value=Value(broker_config=value)) if value.configs else Record(key=key)


def security(key: security_pb.SecurityKey, value: security_pb.SecurityValue | None) -> Record:
    """An ACL, or quotas or credentials; None is a tombstone."""
    row = Key(security=key)
    return Record(key=row) if value is None else Record(key=row, value=Value(security=value))


def node(value: pb.Node) -> Record:
    return Record(key=_node_key(value.role, value.node_id), value=Value(node=value))


def node_gone(role: pb.Role.ValueType, node_id: int) -> Record:
    return Record(key=_node_key(role, node_id))


def _node_key(role: pb.Role.ValueType, node_id: int) -> Key:
    return Key(node=Key.NodeKey(role=role, node_id=node_id))


def state_partition_owner(value: pb.StatePartitionOwner) -> Record:
    return Record(key=Key(state_partition_owner=value.state_partition), value=Value(state_partition_owner=value))


def share_group(group_id: str, value: records_pb.ShareGroupMetadata | None) -> Record:
    """Metadata of a share group; None is a tombstone, which must be the last of the group's records."""
    key = Key(share_group=group_id)
    return Record(key=key) if value is None else Record(key=key, value=Value(share_group=value))


def share_group_member(group_id: str, member_id: str, value: records_pb.ShareGroupMemberMetadata | None) -> Record:
    key = Key(share_group_member=Key.Member(group_id=group_id, member_id=member_id))
    return Record(key=key) if value is None else Record(key=key, value=Value(share_group_member=value))


def share_group_target(
    group_id: str, member_id: str, value: records_pb.ShareGroupTargetAssignmentMember | None
) -> Record:
    key = Key(share_group_target_assignment=Key.Member(group_id=group_id, member_id=member_id))
    return Record(key=key) if value is None else Record(key=key, value=Value(share_group_target_assignment=value))


def share_group_partitions(group_id: str, value: records_pb.ShareGroupPartitionMetadata | None) -> Record:
    key = Key(share_group_partitions=group_id)
    return Record(key=key) if value is None else Record(key=key, value=Value(share_group_partitions=value))


def committed_offset(
    group_id: str, topic_id: bytes, partition: int, value: records_pb.OffsetCommitValue | None
) -> Record:
    """A committed offset of a group; None is a tombstone."""
    key = Key(committed_offset=Key.CommittedOffsetKey(group_id=group_id, topic_id=topic_id, partition=partition))
    return Record(key=key) if value is None else Record(key=key, value=Value(committed_offset=value))


def pending_offset(
    producer_id: int, group_id: str, topic_id: bytes, partition: int, value: records_pb.OffsetCommitValue | None
) -> Record:
    """An offset that is pending until the producer's transaction ends; None is a tombstone."""
    row = Key.PendingOffsetKey(producer_id=producer_id, group_id=group_id, topic_id=topic_id, partition=partition)
    key = Key(pending_offset=row)
    return Record(key=key) if value is None else Record(key=key, value=Value(pending_offset=value))


def transaction(transactional_id: str, value: records_pb.TransactionMetadata | None) -> Record:
    key = Key(transaction=transactional_id)
    return Record(key=key) if value is None else Record(key=key, value=Value(transaction=value))


def classic_group(group_id: str, value: records_pb.ClassicGroupMetadata | None) -> Record:
    """Metadata of a classic group; None is a tombstone."""
    key = Key(classic_group=group_id)
    return Record(key=key) if value is None else Record(key=key, value=Value(classic_group=value))
