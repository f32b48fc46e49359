"""The answers of WatchCatalog (the whole catalog, or its changes since a version) and of DescribePartitions.

An answer may exceed the frame limit between roles, and building it at once would block the event loop for too long. It
is therefore built in pieces (`CatalogPieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kshare_coordinator.machine.catalog.placement import NO_LEADER, draining_leaders
from kshare_coordinator.machine.catalog.starts import current_start_id, starts_of
from kshare_coordinator.machine.state import Changes, CoordinatorState, leader_epoch
from kshare_core.configs.listener_names import is_password
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_rpc.generated.kshare.v1.security_pb2 import SecurityEntry, SecurityKey


def has_news(state: CoordinatorState, after_version: int) -> bool:
    """Also true for a version from the future: the caller saw a catalog that is gone, and needs the whole one."""
    return state.version != after_version


def known_version(state: CoordinatorState, request: pb.WatchCatalogRequest) -> int:
    """The version of this catalog that a watching node has; 0 if it has none.

    A node whose newest start is another one may have its version from a catalog that is gone: a restored copy counts
    the same versions again, with other changes.
    """
    is_of_another = request.start_id and request.start_id != current_start_id(state)
    return 0 if is_of_another else request.after_version


class CatalogPieces:
    """One answer of WatchCatalog, made in pieces of about `piece_bytes`, all of the state's version at the beginning.

    Rows are never changed, only replaced, so a response keeps its version while the catalog changes. `with_security`
    adds what only gateways get: rows of security, and broker configs that are secrets.
    """

    def __init__(
        self,
        state: CoordinatorState,
        after_version: int,
        piece_bytes: int | None = None,
        *,
        with_security: bool = False,
    ) -> None:
        self._piece_bytes = piece_bytes
        self._with_security = with_security
        self._head = pb.WatchCatalogResponse(
            version=state.version, cluster_id=state.cluster_id, starts=starts_of(state)
        )
        self._starts = [0]
        """The row at which each piece begins, as far as they were made."""
        self._rows: list[_Row] = []
        self._numbers: dict[str, int] = {}
        if has_news(state, after_version):
            self._numbers = dict(state.numbers)
            self._add_rows(state, _changes_since(state, after_version))

    def _add_rows(self, state: CoordinatorState, changes: Changes | None) -> None:
        self._head.full = changes is None
        topic_ids = state.topics if changes is None else changes.topics
        for topic_id in sorted(topic_ids):
            self._rows.append(state.topics.get(topic_id) or topic_id)
        groups = state.group_configs if changes is None else changes.groups
        self._rows += [(_group_config, group_id, state.group_configs.get(group_id, {})) for group_id in sorted(groups)]
        brokers = state.broker_configs if changes is None else changes.brokers
        of_broker = _broker_config if self._with_security else _broker_config_without_secrets
        self._rows += [(of_broker, each, state.broker_configs.get(each, {})) for each in sorted(brokers)]
        if self._with_security:
            keys = state.security if changes is None else changes.security
            self._rows += [state.security.get(key) or _gone(key) for key in sorted(keys)]
        if changes is None or changes.nodes:
            _add_nodes(state, self._head)

    def has(self, number: int) -> bool:
        """Whether the piece can be made: one that was made, or the next one."""
        return 0 <= number < len(self._starts)

    def piece(self, number: int) -> pb.WatchCatalogResponse:
        """The piece; again where it was made already, for its answer may have been lost."""
        answer = pb.WatchCatalogResponse(version=self._head.version, cluster_id=self._head.cluster_id)
        answer.full = self._head.full
        if number == 0:
            answer.MergeFrom(self._head)
        size, end = 0, self._starts[number]
        while end < len(self._rows) and (self._piece_bytes is None or size < self._piece_bytes):
            size += self._add(answer, self._rows[end])
            end += 1
        answer.piece, answer.more = number, end < len(self._rows)
        if answer.more and number + 1 == len(self._starts):
            self._starts.append(end)
        return answer

    def _add(self, answer: pb.WatchCatalogResponse, row: _Row) -> int:
        """The bytes that were added, about."""
        if isinstance(row, bytes):
            answer.deleted_topic_ids.append(row)
            return len(row)
        if isinstance(row, records_pb.TopicRecord):
            topic = _topic_view(self._numbers, row)
            answer.topics.append(topic)
            return topic.ByteSize()
        if isinstance(row, SecurityEntry):
            answer.security.append(row)
            return row.ByteSize()
        make, owner, texts = row
        made = make(owner, texts)
        if isinstance(made, pb.GroupConfig):
            answer.group_configs.append(made)
        else:
            answer.broker_configs.append(made)
        return made.ByteSize()


_Row = (
    bytes
    | records_pb.TopicRecord
    | SecurityEntry
    | tuple[Callable[[str, Mapping[str, str]], pb.GroupConfig | pb.BrokerConfig], str, Mapping[str, str]]
)
"""A deleted topic's id, a topic, a security row, or configs and what they become."""


def _gone(key: bytes) -> SecurityEntry:
    return SecurityEntry(key=SecurityKey.FromString(key))


def catalog_answer(state: CoordinatorState, after_version: int) -> pb.WatchCatalogResponse:
    """The answer in one piece."""
    return CatalogPieces(state, after_version).piece(0)


def _changes_since(state: CoordinatorState, after_version: int) -> Changes | None:
    """All changes after a version together; None where the log does not reach back so far, or the caller has none."""
    behind = state.version - after_version
    if after_version <= 0 or not 0 < behind <= len(state.changes):
        return None
    together = Changes()
    for changes in list(state.changes)[-behind:]:
        together.topics.update(changes.topics)
        together.groups.update(changes.groups)
        together.brokers.update(changes.brokers)
        together.security.update(changes.security)
        together.leaders.update(changes.leaders)
        together.nodes = together.nodes or changes.nodes
    if together.leaders:
        for topic_id, topic in state.topics.items():
            if any(placement.leader_node_id in together.leaders for placement in topic.placements):
                together.topics[topic_id] = None
    return together


def topic_view(state: CoordinatorState, topic: records_pb.TopicRecord) -> pb.Topic:
    return _topic_view(state.numbers, topic)


def _topic_view(numbers: Mapping[str, int], topic: records_pb.TopicRecord) -> pb.Topic:
    has_other_id = topic.upstream_topic_id != topic.topic_id
    return pb.Topic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[
            pb.Topic.Partition(
                partition=placement.partition,
                leader_node_id=placement.leader_node_id,
                leader_epoch=leader_epoch(numbers, placement),
                placement_epoch=placement.placement_epoch,
                is_moving=placement.is_moving,
                moving_to_node_id=placement.moving_to_node_id,
                move_epoch=placement.move_epoch,
                is_fenced=placement.is_fenced,
                given_up_epoch=placement.given_up_epoch,
            )
            for placement in topic.placements
        ],
        configs=topic.configs,
        internal=topic.internal,
        upstream_topic_id=topic.upstream_topic_id if has_other_id else b"",
    )


def describe_partitions(state: CoordinatorState, topic_names: Sequence[str]) -> pb.DescribePartitionsResponse:
    """The partition leaders of some topics, or (without names) of all topics; KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
    answer = pb.DescribePartitionsResponse()
    for name in topic_names or sorted(state.topic_ids):
        topic = state.topic_named(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name[:300]} does not exist")
        described = answer.topics.add()
        described.CopyFrom(topic_view(state, topic))
        described.ClearField("configs")
    live, draining = state.live_nodes(pb.ROLE_LEADER), draining_leaders(state)
    for node_id in sorted({*live, *(node_id for node_id in state.partitions_placed if node_id != NO_LEADER)}):
        is_live = node_id in live
        answer.leaders.add(
            node_id=node_id,
            is_live=is_live,
            is_draining=node_id in draining,
            rpc_address=state.nodes[pb.ROLE_LEADER, node_id].rpc_address if is_live else "",
            partition_count=state.partitions_placed.get(node_id, 0),
        )
    return answer


def _group_config(group_id: str, texts: Mapping[str, str]) -> pb.GroupConfig:
    """Without entries where the group has none any more."""
    return pb.GroupConfig(group_id=group_id, configs=_entries(texts))


def _broker_config(broker_id: str, texts: Mapping[str, str]) -> pb.BrokerConfig:
    """Without entries where the broker has none any more."""
    return pb.BrokerConfig(broker_id=broker_id, configs=_entries(texts))


def _broker_config_without_secrets(broker_id: str, texts: Mapping[str, str]) -> pb.BrokerConfig:
    return _broker_config(broker_id, {name: text for name, text in texts.items() if not is_password(name)})


def _entries(texts: Mapping[str, str]) -> list[pb.ConfigEntry]:
    return [pb.ConfigEntry(name=name, value=value) for name, value in sorted(texts.items())]


def _add_nodes(state: CoordinatorState, answer: pb.WatchCatalogResponse) -> None:
    answer.nodes_changed = True
    answer.nodes.extend(node for _, node in sorted(state.nodes.items()))
    answer.state_partition_owners.extend(
        state_partition for _, state_partition in sorted(state.state_partitions.items())
    )
    answer.state_partition_count = state.state_partition_count
