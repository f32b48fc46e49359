"""The catalog view: an immutable, complete copy of the catalog in every role but the coordinator.

Lookups never leave the process. `catalog_follower` produces each next view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kshare_core.configs import DynamicConfigs
from kshare_core.identifiers import (
    ZERO_TOPIC_ID,
    SharePartitionKey,
    TopicPartition,
    group_partition_of,
    state_partition_of,
)
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, security_pb2

PLAINTEXT_LISTENER = "PLAINTEXT"
"""The listener name of a gateway that has no named listeners."""


class ClientEndpoint(NamedTuple):
    """The host and port of a gateway for clients of one listener."""

    host: str
    port: int


def client_endpoint(gateway: coordinator_pb2.Node, listener: str) -> ClientEndpoint | None:
    """The endpoint of a gateway for clients of the listener with this name; None if it has no such listener."""
    if not gateway.listeners and listener == PLAINTEXT_LISTENER:
        return ClientEndpoint(gateway.advertised_host, gateway.advertised_port)
    return next((ClientEndpoint(each.host, each.port) for each in gateway.listeners if each.name == listener), None)


def expected_topic_id(topic: coordinator_pb2.Topic) -> bytes:
    """The topic's id in the existing cluster; zero, for any, if the cluster had no topic ids at the last poll."""
    return topic.upstream_topic_id or topic.topic_id


def is_cluster_topic(topic: coordinator_pb2.Topic, found: bytes) -> bool:
    """Whether the cluster's topic with the same name and this id is the catalog's; zero if the cluster shows no id."""
    expected = expected_topic_id(topic)
    return ZERO_TOPIC_ID in (expected, found) or expected == found


class CatalogStart(NamedTuple):
    """A start of the active coordinator, and the version of the catalog at that time."""

    start_id: str
    version: int


@dataclass(frozen=True, slots=True)
class CatalogView:
    """One version of the catalog. Immutable; a new version is a new view."""

    version: int = 0
    cluster_id: str = ""
    starts: tuple[CatalogStart, ...] = ()
    """The newest starts of the active coordinator, in order; see WatchCatalogResponse."""
    topics_by_id: Mapping[bytes, coordinator_pb2.Topic] = field(default_factory=dict)
    topics_by_name: Mapping[str, coordinator_pb2.Topic] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic broker configs by broker id; the empty id is for all brokers."""
    security: Mapping[bytes, security_pb2.SecurityEntry] = field(default_factory=dict)
    """ACLs, client quotas and SCRAM credentials by their encoded keys; only in gateways."""
    nodes: tuple[coordinator_pb2.Node, ...] = ()
    state_partition_owners: Mapping[int, int] = field(default_factory=dict)
    state_partition_moves: Mapping[int, coordinator_pb2.StatePartitionOwner] = field(default_factory=dict)
    """State partitions in reassignment: the old owner no longer serves them, and the new one does not yet."""
    state_partition_owner_epochs: Mapping[int, int] = field(default_factory=dict)
    """The catalog's epoch at the newest change of each state partition's owner or move."""
    state_partition_given_up_epochs: Mapping[int, int] = field(default_factory=dict)
    """The epoch at which the state of a state partition was given up with its owner; absent where it never was."""
    state_partition_count: int = 0
    coordinators: Mapping[int, str] = field(default_factory=dict)
    """The addresses of the live coordinators by node id."""
    group_partition_owners: Mapping[int, int] = field(default_factory=dict)
    """Node ids of coordinators by group partition; partitions without an owner are absent."""
    group_partition_count: int = 0
    coordinators_version: int = 0
    """The version of the three fields above."""

    def partition(self, key: TopicPartition) -> coordinator_pb2.Topic.Partition | None:
        """The partition, or None if the topic or the partition does not exist."""
        topic = self.topics_by_id.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def node(self, role: coordinator_pb2.Role.ValueType, node_id: int) -> coordinator_pb2.Node | None:
        for node in self.nodes:
            if node.node_id == node_id and node.role == role:
                return node
        return None

    def gateways(self, listener: str | None = None) -> list[coordinator_pb2.Node]:
        """The brokers that clients see, sorted by node id: all gateways, or those with a listener of this name."""
        found = [
            node
            for node in self.nodes
            if node.role == coordinator_pb2.ROLE_GATEWAY
            and (listener is None or client_endpoint(node, listener) is not None)
        ]
        return sorted(found, key=lambda node: node.node_id)

    def share_coordinator_address(self, key: SharePartitionKey) -> str | None:
        """The address of the share-partition's share coordinator; None while no live one owns its state."""
        if self.state_partition_count == 0:
            return None
        owner = self.state_partition_owners.get(state_partition_of(key, self.state_partition_count))
        node = None if owner is None else self.node(coordinator_pb2.ROLE_SHARE_COORDINATOR, owner)
        return node.rpc_address if node else None

    def state_owner_epoch(self, key: SharePartitionKey) -> int:
        """The owner epoch of the share-partition's state partition; 0 where it has no owner."""
        if self.state_partition_count == 0:
            return 0
        return self.state_partition_owner_epochs.get(state_partition_of(key, self.state_partition_count), 0)

    def coordinator_address(self, group_id: str) -> str | None:
        """The address of the group's coordinator; None while no live one owns the group's partition."""
        if self.group_partition_count == 0:
            return None
        return self.group_partition_address(group_partition_of(group_id, self.group_partition_count))

    def group_partition_address(self, group_partition: int) -> str | None:
        owner = self.group_partition_owners.get(group_partition)
        return None if owner is None else self.coordinators.get(owner)

    def leader_address(self, key: TopicPartition) -> str | None:
        """The address of the partition's leader; None while it is unknown."""
        partition = self.partition(key)
        node = partition and self.node(coordinator_pb2.ROLE_LEADER, partition.leader_node_id)
        return node.rpc_address if node else None


def logs_begun_anew(old: CatalogView, new: CatalogView) -> list[TopicPartition]:
    """Partitions whose lost leader was given up since the old view: their offsets now identify other records."""
    found = []
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is None or before is topic:
            continue
        for one, other in zip(before.partitions, topic.partitions, strict=False):
            if one.given_up_epoch != other.given_up_epoch:
                found.append(TopicPartition(topic_id, other.partition))
    return found


class ViewDraft:
    """The next view, built from an answer that comes in pieces. It is not visible before `finished`."""

    def __init__(self, view: CatalogView) -> None:
        self._view = view
        self._is_changed = False
        self._is_full = False
        self._starts: tuple[CatalogStart, ...] = ()
        self._topics: dict[bytes, coordinator_pb2.Topic] | None = None
        self._names: dict[str, coordinator_pb2.Topic] = {}
        self._groups: dict[str, Mapping[str, str]] | None = None
        self._brokers: dict[str, Mapping[str, str]] | None = None
        self._security: dict[bytes, security_pb2.SecurityEntry] | None = None
        self._of_nodes: coordinator_pb2.WatchCatalogResponse | None = None

    def add(self, piece: coordinator_pb2.WatchCatalogResponse) -> None:
        """Adds the next piece of the answer; pieces must come in order."""
        if piece.piece == 0:
            self._is_changed = piece.version != self._view.version or piece.full
            self._is_full = piece.full
            self._starts = tuple(CatalogStart(start.start_id, start.version) for start in piece.starts)
            if piece.full:
                self._topics, self._names, self._groups, self._brokers, self._security = {}, {}, {}, {}, {}
            if piece.full or piece.nodes_changed:
                self._of_nodes = piece
        if not self._is_changed:
            return
        self._add_topics(piece)
        if piece.group_configs:
            self._groups = dict(self._view.group_configs) if self._groups is None else self._groups
            for group in piece.group_configs:
                _put_configs(self._groups, group.group_id, group.configs)
        if piece.broker_configs:
            self._brokers = dict(self._view.broker_configs) if self._brokers is None else self._brokers
            for broker in piece.broker_configs:
                _put_configs(self._brokers, broker.broker_id, broker.configs)

        self._add_security(piece)

    def _add_security(self, piece: coordinator_pb2.WatchCatalogResponse) -> None:
        if not piece.security:
            return
        self._security = dict(self._view.security) if self._security is None else self._security
        for entry in piece.security:
            key = entry.key.SerializeToString(deterministic=True)
            if entry.HasField("value"):
                self._security[key] = entry
            else:
                self._security.pop(key, None)

    def _add_topics(self, piece: coordinator_pb2.WatchCatalogResponse) -> None:
        """Rows are in the order of topic ids, so a recreated topic may take a name before the old topic's deletion."""
        if not piece.topics and not piece.deleted_topic_ids:
            return
        if self._topics is None:
            self._topics, self._names = dict(self._view.topics_by_id), dict(self._view.topics_by_name)
        for topic_id in piece.deleted_topic_ids:
            gone = self._topics.pop(topic_id, None)
            if gone is not None and self._names[gone.name].topic_id == topic_id:
                del self._names[gone.name]
        for topic in piece.topics:
            self._topics[topic.topic_id] = topic
            self._names[topic.name] = topic

    def finished(self, last: coordinator_pb2.WatchCatalogResponse) -> CatalogView:
        """The view after the last piece; the same object if nothing changed."""
        view = _with_coordinators(self._view, last)
        if not self._is_changed:
            return view
        changed = replace(view, version=last.version, cluster_id=last.cluster_id, starts=self._starts)
        if self._topics is not None:
            changed = replace(changed, topics_by_id=self._topics, topics_by_name=self._names)
        if self._groups is not None:
            changed = replace(changed, group_configs=self._groups)
        if self._brokers is not None:
            changed = replace(changed, broker_configs=self._brokers)
        if self._security is not None:
            changed = replace(changed, security=self._security)
        return changed if self._of_nodes is None else _with_nodes(changed, self._of_nodes)


def _put_configs(
    table: dict[str, Mapping[str, str]], owner: str, configs: Iterable[coordinator_pb2.ConfigEntry]
) -> None:
    """Sets the owner's entry; empty configs remove it, as in the full catalog."""
    texts = {entry.name: entry.value for entry in configs}
    if texts:
        table[owner] = texts
    else:
        table.pop(owner, None)


def next_view(view: CatalogView, answer: coordinator_pb2.WatchCatalogResponse) -> CatalogView:
    """The view after an answer in one piece; the same object if nothing changed."""
    draft = ViewDraft(view)
    draft.add(answer)
    return draft.finished(answer)


def _with_nodes(view: CatalogView, answer: coordinator_pb2.WatchCatalogResponse) -> CatalogView:
    owners = answer.state_partition_owners
    return replace(
        view,
        nodes=tuple(answer.nodes),
        state_partition_owners={owner.state_partition: owner.node_id for owner in owners},
        state_partition_moves={owner.state_partition: owner for owner in owners if owner.is_moving},
        state_partition_owner_epochs={owner.state_partition: owner.owner_epoch for owner in owners},
        state_partition_given_up_epochs={
            owner.state_partition: owner.given_up_epoch for owner in owners if owner.given_up_epoch
        },
        state_partition_count=answer.state_partition_count,
    )


def _with_coordinators(view: CatalogView, answer: coordinator_pb2.WatchCatalogResponse) -> CatalogView:
    if answer.coordinators_version == view.coordinators_version:
        return view
    return replace(
        view,
        coordinators={node.node_id: node.rpc_address for node in answer.coordinators},
        group_partition_owners={owner.partition: owner.node_id for owner in answer.group_partition_owners},
        group_partition_count=answer.group_partition_count,
        coordinators_version=answer.coordinators_version,
    )


def alter_configs(configs: DynamicConfigs, view: CatalogView, broker_id: int) -> bool:
    """Applies the view's dynamic configs to a broker's configs; returns whether anything changed."""
    of_all, of_one = view.broker_configs.get("", {}), view.broker_configs.get(str(broker_id), {})
    return configs.alter(of_all, of_one)
