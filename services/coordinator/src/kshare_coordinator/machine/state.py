"""The coordinator's in-memory state, and how each record changes it.

The state changes only through `replay`. At load, records arrive in key order, so replaying a record never depends on
another record being present. Values derived from several records are computed on demand, or kept as counters that are
adjusted with each row.

With several coordinators, the others follow the catalog of the active one. Each coordinator's state holds only the
groups of the group partitions that it owns.

`changes` is not part of the state. It is the log of the changes of the newest versions, for delta answers of
WatchCatalog. The record that sets the version closes that version's entry; it is the last catalog record of each
decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from typing import assert_never

from kshare_coordinator.machine import records
from kshare_coordinator.machine.groups.assignment import assignment_of
from kshare_coordinator.machine.groups.classic.group import ClassicGroup, ClassicGroupInMemory, group_of
from kshare_coordinator.machine.groups.consumer.records import REPLAY as REPLAY_OF_CONSUMER_GROUPS
from kshare_coordinator.machine.groups.consumer.values import ConsumerGroup
from kshare_coordinator.machine.groups.share.group import ShareGroup, member_of, partitions_of
from kshare_coordinator.machine.offsets.table import OffsetTable, PendingKey
from kshare_coordinator.machine.records import (
    AnyRecord,
    CatalogFollowed,
    CatalogLoaded,
    GroupsGained,
    GroupsLost,
    Key,
    Record,
    Value,
)
from kshare_coordinator.machine.state_parts import FIELDS_OF_GROUPS, copied, forget_groups
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata, TransactionState, metadata_of
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_rpc.generated.kshare.v1.security_pb2 import SecurityEntry, SecurityKey

CHANGE_LOG_LIMIT = 1_000
"""Number of versions whose changes are kept; a watcher that is further behind gets the whole catalog."""

CHANGE_LOG_BYTES_LIMIT = 32 * 1024 * 1024
"""Approximate limit on the changed keys in the log; the newest version is kept regardless of its size."""
CHANGED_KEY_BYTES = 100
"""Approximate overhead of one key in the log, not counting its text."""

NodeId = tuple[pb.Role.ValueType, int]


@dataclass(slots=True)
class Changes:
    """The changes of one catalog version."""

    version: int = 0
    topics: dict[bytes, None] = field(default_factory=dict)
    """Ids of changed or deleted topics; a deleted topic is absent from the state."""
    groups: dict[str, None] = field(default_factory=dict)
    brokers: dict[str, None] = field(default_factory=dict)
    security: dict[bytes, None] = field(default_factory=dict)
    nodes: bool = False
    leaders: dict[int, None] = field(default_factory=dict)
    """Leader nodes with a new epoch: all their partitions changed."""

    @property
    def bytes(self) -> int:
        """Approximate memory of the keys; keys of deleted rows are held only by this log."""
        tables: tuple[Sized, ...] = (self.topics, self.groups, self.brokers, self.security, self.leaders)
        texts = [*self.groups, *self.brokers, *self.security]
        return sum(map(len, tables)) * CHANGED_KEY_BYTES + sum(map(len, texts))


@dataclass(slots=True)
class CoordinatorState:
    """The coordinator's state, see the module docstring. All fields but the change log are derived from records."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    topics: dict[bytes, records_pb.TopicRecord] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    names_by_collision_key: dict[str, dict[str, None]] = field(default_factory=dict)
    topics_generation: int = field(default=0, compare=False)
    """Incremented whenever a topic is created, deleted or gets more partitions."""
    topics_changed: deque[str] = field(default_factory=lambda: deque(maxlen=CHANGE_LOG_LIMIT), compare=False)
    """Names of the topics of the newest generations, one name per generation."""
    partition_count: int = 0
    partitions_placed: dict[int, int] = field(default_factory=dict)
    """Number of partitions by leader node id; -1 counts partitions without a leader."""
    moving_partitions: int = 0
    """Number of topic partitions under reassignment to another leader."""
    catalog_bytes: int = 0
    """Size of the topic and config rows; see `catalog.budget`."""
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Configs by broker id; "" holds the cluster-wide defaults."""
    security: dict[bytes, SecurityEntry] = field(default_factory=dict)
    """ACLs, client quotas and SCRAM credentials by their encoded keys."""
    acls_generation: int = field(default=0, compare=False)
    """Incremented whenever an ACL is created or deleted."""
    nodes: dict[NodeId, pb.Node] = field(default_factory=dict)
    state_partition_owners: dict[int, int] = field(default_factory=dict)
    state_partitions: dict[int, pb.StatePartitionOwner] = field(default_factory=dict)
    """The same owners, with epochs and moves."""
    share_groups: dict[str, ShareGroup] = field(default_factory=dict)
    classic_groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    """Groups of KIP-848. `groups.namespace` says which of these tables a group id is in."""
    offsets: OffsetTable = field(default_factory=OffsetTable)
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    """By transactional id; the one that changed last comes last."""
    ongoing_transactions: dict[str, None] = field(default_factory=dict)
    """Transactional ids with an open transaction."""
    deleted_share_group_epochs: dict[int, int] = field(default_factory=dict)
    """Highest state epoch of all deleted share groups, by group partition."""
    group_partitions: dict[int, None] | None = field(default=None, compare=False)
    """The group partitions whose groups are in this state; None: all of them."""
    consumer_offsets_partition_count: int = field(default=0, compare=False)
    """Partition count of `__consumer_offsets` as clients see it (offsets.topic.num.partitions); 0: no such topic."""
    changes: deque[Changes] = field(default_factory=deque, compare=False)
    change_log_bytes: int = field(default=0, compare=False)
    """Approximate size of `changes`."""
    open_changes: Changes = field(default_factory=Changes, compare=False)

    @property
    def cluster_id(self) -> str:
        return self.texts.get(records.CLUSTER_ID, "")

    @property
    def version(self) -> int:
        return self.numbers.get(records.CATALOG_VERSION, 0)

    @property
    def epoch_counter(self) -> int:
        return self.numbers.get(records.EPOCH_COUNTER, 0)

    @property
    def state_partition_count(self) -> int:
        return self.numbers.get(records.STATE_PARTITION_COUNT, 0)

    def topic_named(self, name: str) -> records_pb.TopicRecord | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def live_nodes(self, role: pb.Role.ValueType) -> list[int]:
        """The sorted ids of the live nodes of a role."""
        return sorted(node_id for node_role, node_id in self.nodes if node_role == role)

    def leader_epoch(self, placement: records_pb.TopicRecord.Placement) -> int:
        return leader_epoch(self.numbers, placement)

    def forget_order(self) -> None:
        """Clears the change log after a load, whose records did not arrive in chronological order.

        Transactions say when they changed, so they are put in order.
        """
        changed = sorted(self.transactions.items(), key=lambda item: item[1].last_update_timestamp_ms)
        self.transactions = dict(changed)
        self.changes.clear()
        self.change_log_bytes = 0
        self.open_changes = Changes()

    def copy(self) -> CoordinatorState:
        """An equal state that shares no mutable data with this one."""
        copy: CoordinatorState = copied(self)
        return copy

    def has_group_partition(self, partition: int) -> bool:
        """Whether the groups of a group partition are in this state."""
        return self.group_partitions is None or partition in self.group_partitions

    def deleted_share_group_epoch(self, partition: int) -> int:
        """The highest state epoch of all deleted share groups of a group partition; 0 if none was deleted."""
        of_all = self.numbers.get(records.DELETED_SHARE_GROUP_EPOCH, 0)
        return max(of_all, self.deleted_share_group_epochs.get(partition, 0))

    def replay(self, record: AnyRecord) -> None:
        if not isinstance(record, Record):
            self._replay_in_memory(record)
            return
        kind = record.key.WhichOneof("kind")
        if kind is not None:  # kinds written by a newer version are ignored
            _REPLAY[kind](self, record.key, record.value if record.HasField("value") else None)

    def _replay_in_memory(self, record: records.InMemory) -> None:
        match record:
            case ClassicGroupInMemory(group=group):
                self.classic_groups[group.group_id] = group
            case CatalogLoaded(found=found):
                self._load_catalog(found)
            case CatalogFollowed(found=found):
                self._replay_all(found)
            case GroupsGained(partition=partition, found=found):
                if self.has_group_partition(partition):
                    forget_groups(self, partition)
                self._replay_all(found)
                if self.group_partitions is not None:
                    self.group_partitions[partition] = None
            case GroupsLost(partition=partition):
                forget_groups(self, partition)
                if self.group_partitions is not None:
                    self.group_partitions.pop(partition, None)
            case _:
                assert_never(record)

    def _replay_all(self, found: Sequence[Record]) -> None:
        for record in found:
            self.replay(record)

    def _load_catalog(self, found: Sequence[Record]) -> None:
        """Replaces the catalog. The generations jump, that of topics past the change log: earlier lookups are stale."""
        fresh = CoordinatorState(consumer_offsets_partition_count=self.consumer_offsets_partition_count)
        fresh._replay_all(found)
        fresh.forget_order()
        fresh.topics_generation += self.topics_generation + CHANGE_LOG_LIMIT + 1
        fresh.acls_generation += self.acls_generation + 1
        for each in fields(self):
            if each.name not in FIELDS_OF_GROUPS:
                setattr(self, each.name, getattr(fresh, each.name))


def leader_epoch(numbers: Mapping[str, int], placement: records_pb.TopicRecord.Placement) -> int:
    """The leader epoch of a partition, which never decreases: node and placement epochs share one growing counter."""
    node_epoch = numbers.get(f"{records.LEADER_NODE_EPOCH}{placement.leader_node_id}", 0)
    return max(placement.placement_epoch, node_epoch)


def collision_key(name: str) -> str:
    """Topic names with the same key collide in metric names (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")


def _cluster(state: CoordinatorState, key: Key, value: Value | None) -> None:
    if key.cluster.startswith(records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION):
        _deleted_share_group_epoch(state, key, value)
        return
    if value is None:
        state.numbers.pop(key.cluster, None)
        state.texts.pop(key.cluster, None)
    elif value.cluster.text:
        state.texts[key.cluster] = value.cluster.text
    else:
        state.numbers[key.cluster] = value.cluster.number
    if key.cluster == records.CATALOG_VERSION:
        _close_changes(state)
    elif key.cluster == records.STATE_PARTITION_COUNT:
        state.open_changes.nodes = True
    elif key.cluster.startswith(records.LEADER_NODE_EPOCH):
        state.open_changes.leaders[int(key.cluster.removeprefix(records.LEADER_NODE_EPOCH))] = None


def _close_changes(state: CoordinatorState) -> None:
    """Appends the open changes as those of the newest version, and drops the oldest versions above the limits."""
    state.open_changes.version = state.version
    state.changes.append(state.open_changes)
    state.change_log_bytes += state.open_changes.bytes
    while len(state.changes) > CHANGE_LOG_LIMIT or (
        state.change_log_bytes > CHANGE_LOG_BYTES_LIMIT and len(state.changes) > 1
    ):
        state.change_log_bytes -= state.changes.popleft().bytes
    state.open_changes = Changes()


def _deleted_share_group_epoch(state: CoordinatorState, key: Key, value: Value | None) -> None:
    partition = int(key.cluster.removeprefix(records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION))
    if value is None:
        state.deleted_share_group_epochs.pop(partition, None)
    else:
        state.deleted_share_group_epochs[partition] = value.cluster.number


def _topic(state: CoordinatorState, key: Key, value: Value | None) -> None:
    old = state.topics.pop(key.topic, None)
    if old is not None:
        _count(state, old, -1)
        del state.topic_ids[old.name]
        colliding = state.names_by_collision_key[collision_key(old.name)]
        del colliding[old.name]
        if not colliding:
            del state.names_by_collision_key[collision_key(old.name)]
    if value is not None:
        topic = value.topic
        state.topics[key.topic] = topic
        state.topic_ids[topic.name] = key.topic
        state.names_by_collision_key.setdefault(collision_key(topic.name), {})[topic.name] = None
        _count(state, topic, 1)
    state.open_changes.topics[key.topic] = None
    _note_generation(state, old, value.topic if value else None)


def _note_generation(
    state: CoordinatorState, old: records_pb.TopicRecord | None, new: records_pb.TopicRecord | None
) -> None:
    topic = new or old
    if topic is None or (old is not None and new is not None and len(old.placements) == len(new.placements)):
        return
    state.topics_generation += 1
    state.topics_changed.append(topic.name)


def _count(state: CoordinatorState, topic: records_pb.TopicRecord, sign: int) -> None:
    state.catalog_bytes += sign * topic.ByteSize()
    state.partition_count += sign * len(topic.placements)
    for placement in topic.placements:
        state.moving_partitions += sign * placement.is_moving
        count = state.partitions_placed.get(placement.leader_node_id, 0) + sign
        if count:
            state.partitions_placed[placement.leader_node_id] = count
        else:
            state.partitions_placed.pop(placement.leader_node_id, None)


def _group_config(state: CoordinatorState, key: Key, value: Value | None) -> None:
    _replace_configs(state, state.group_configs, key.group_config, value.group_config.configs if value else ())
    state.open_changes.groups[key.group_config] = None


def _broker_config(state: CoordinatorState, key: Key, value: Value | None) -> None:
    _replace_configs(state, state.broker_configs, key.broker_config, value.broker_config.configs if value else ())
    state.open_changes.brokers[key.broker_config] = None


def _replace_configs(
    state: CoordinatorState, table: dict[str, dict[str, str]], owner: str, configs: Iterable[pb.ConfigEntry]
) -> None:
    state.catalog_bytes -= configs_bytes(owner, table.pop(owner, {}))
    texts = {entry.name: entry.value for entry in configs}
    if texts:
        table[owner] = texts
        state.catalog_bytes += configs_bytes(owner, texts)


def configs_bytes(owner: str, texts: Mapping[str, str]) -> int:
    """Approximate size of the config row of a group or broker; 0 without configs, because there is no row then."""
    if not texts:
        return 0
    return len(owner.encode()) + sum(len(name.encode()) + len(value.encode()) + 8 for name, value in texts.items())


def _security(state: CoordinatorState, key: Key, value: Value | None) -> None:
    encoded = security_key(key.security)
    old = state.security.pop(encoded, None)
    if old is not None:
        state.catalog_bytes -= old.ByteSize()
    if value is not None:
        entry = state.security[encoded] = SecurityEntry(key=key.security, value=value.security)
        state.catalog_bytes += entry.ByteSize()
    state.open_changes.security[encoded] = None
    state.acls_generation += key.security.HasField("acl")


def security_key(key: SecurityKey) -> bytes:
    """The encoded key of a row of `CoordinatorState.security`; equal keys have equal bytes."""
    return key.SerializeToString(deterministic=True)


def _node(state: CoordinatorState, key: Key, value: Value | None) -> None:
    node_id = (key.node.role, key.node.node_id)
    if value is None:
        state.nodes.pop(node_id, None)
    else:
        state.nodes[node_id] = value.node
    state.open_changes.nodes = True


def _state_partition_owner(state: CoordinatorState, key: Key, value: Value | None) -> None:
    if value is None:
        state.state_partition_owners.pop(key.state_partition_owner, None)
        state.state_partitions.pop(key.state_partition_owner, None)
    else:
        state.state_partition_owners[key.state_partition_owner] = value.state_partition_owner.node_id
        state.state_partitions[key.state_partition_owner] = value.state_partition_owner
    state.open_changes.nodes = True


def _share_group(state: CoordinatorState, key: Key, value: Value | None) -> None:
    if value is None:
        state.share_groups.pop(key.share_group, None)
    else:
        metadata = value.share_group
        _change_group(
            state,
            key.share_group,
            lambda group: replace(
                group,
                epoch=metadata.epoch,
                assignment_epoch=metadata.assignment_epoch,
                assignment_timestamp_ms=metadata.assignment_timestamp_ms,
                is_deleting=metadata.is_deleting,
                state_epoch_base=metadata.state_epoch_base,
                topics_changed=metadata.topics_changed,
                has_unassigned=metadata.has_unassigned,
            ),
        )


def _member(state: CoordinatorState, key: Key, value: Value | None) -> None:
    member_id = key.share_group_member.member_id

    def change(group: ShareGroup) -> ShareGroup:
        members = {name: member for name, member in group.members.items() if name != member_id}
        if value is not None:
            members[member_id] = member_of(value.share_group_member)
        return replace(group, members=members)

    _change_group(state, key.share_group_member.group_id, change)


def _target(state: CoordinatorState, key: Key, value: Value | None) -> None:
    member_id = key.share_group_target_assignment.member_id

    def change(group: ShareGroup) -> ShareGroup:
        targets = {name: target for name, target in group.targets.items() if name != member_id}
        if value is not None:
            targets[member_id] = assignment_of(value.share_group_target_assignment.assignment)
        return replace(group, targets=targets)

    _change_group(state, key.share_group_target_assignment.group_id, change)


def _partitions(state: CoordinatorState, key: Key, value: Value | None) -> None:
    metadata = partitions_of(value.share_group_partitions if value else records_pb.ShareGroupPartitionMetadata())
    _change_group(state, key.share_group_partitions, lambda group: replace(group, partitions=metadata))


def _change_group(state: CoordinatorState, group_id: str, change: Callable[[ShareGroup], ShareGroup]) -> None:
    state.share_groups[group_id] = change(state.share_groups.get(group_id) or ShareGroup(group_id=group_id))


def _committed_offset(state: CoordinatorState, key: Key, value: Value | None) -> None:
    row = key.committed_offset
    offset = value.committed_offset if value else None
    state.offsets.put_committed(row.group_id, TopicPartition(row.topic_id, row.partition), offset)


def _pending_offset(state: CoordinatorState, key: Key, value: Value | None) -> None:
    row = key.pending_offset
    pending_key = PendingKey(row.group_id, TopicPartition(row.topic_id, row.partition))
    state.offsets.put_pending(row.producer_id, pending_key, value.pending_offset if value else None)


def _classic_group(state: CoordinatorState, key: Key, value: Value | None) -> None:
    if value is None:
        state.classic_groups.pop(key.classic_group, None)
    else:
        state.classic_groups[key.classic_group] = group_of(key.classic_group, value.classic_group)


def _transaction(state: CoordinatorState, key: Key, value: Value | None) -> None:
    state.transactions.pop(key.transaction, None)
    state.ongoing_transactions.pop(key.transaction, None)
    if value is None:
        return
    metadata = state.transactions[key.transaction] = metadata_of(key.transaction, value.transaction)
    if metadata.state is TransactionState.ONGOING:
        state.ongoing_transactions[key.transaction] = None


def _of_consumer_group(
    replay: Callable[[dict[str, ConsumerGroup], Key, Value | None], None],
) -> Callable[[CoordinatorState, Key, Value | None], None]:
    return lambda state, key, value: replay(state.consumer_groups, key, value)


_REPLAY: dict[str, Callable[[CoordinatorState, Key, Value | None], None]] = {
    "cluster": _cluster,
    "topic": _topic,
    "group_config": _group_config,
    "broker_config": _broker_config,
    "security": _security,
    "node": _node,
    "state_partition_owner": _state_partition_owner,
    "share_group": _share_group,
    "share_group_member": _member,
    "share_group_partitions": _partitions,
    "share_group_target_assignment": _target,
    "committed_offset": _committed_offset,
    "pending_offset": _pending_offset,
    "transaction": _transaction,
    "classic_group": _classic_group,
    **{kind: _of_consumer_group(replay) for kind, replay in REPLAY_OF_CONSUMER_GROUPS.items()},
}
