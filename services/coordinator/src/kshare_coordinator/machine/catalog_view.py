"""WatchCatalog's answers: the whole catalog, or what changed since a version; and who leads which partition."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_coordinator.machine.placement import NO_LEADER, draining_leaders
from kshare_coordinator.machine.state import Changes, CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb


def has_news(state: CoordinatorState, after_version: int) -> bool:
    """Also true for a version from the future: the caller saw a catalog that is gone, and needs the whole one."""
    return state.version != after_version


def catalog_answer(state: CoordinatorState, after_version: int) -> pb.WatchCatalogResponse:
    answer = pb.WatchCatalogResponse(version=state.version, cluster_id=state.cluster_id)
    if not has_news(state, after_version):
        return answer
    changes = _changes_since(state, after_version)
    if changes is None:
        answer.full = True
        answer.topics.extend(topic_view(state, topic) for _, topic in sorted(state.topics.items()))
        answer.group_configs.extend(_group_config(state, group_id) for group_id in sorted(state.group_configs))
        answer.broker_configs.extend(_broker_config(state, broker_id) for broker_id in sorted(state.broker_configs))
        _add_nodes(state, answer)
        return answer
    for topic_id in sorted(changes.topics):
        topic = state.topics.get(topic_id)
        if topic is None:
            answer.deleted_topic_ids.append(topic_id)
        else:
            answer.topics.append(topic_view(state, topic))
    answer.group_configs.extend(_group_config(state, group_id) for group_id in sorted(changes.groups))
    answer.broker_configs.extend(_broker_config(state, broker_id) for broker_id in sorted(changes.brokers))
    if changes.nodes:
        _add_nodes(state, answer)
    return answer


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
        together.leaders.update(changes.leaders)
        together.nodes = together.nodes or changes.nodes
    if together.leaders:
        for topic_id, topic in state.topics.items():
            if any(placement.leader_node_id in together.leaders for placement in topic.placements):
                together.topics[topic_id] = None
    return together


def topic_view(state: CoordinatorState, topic: records_pb.TopicRecord) -> pb.Topic:
    return pb.Topic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[
            pb.Topic.Partition(
                partition=placement.partition,
                leader_node_id=placement.leader_node_id,
                leader_epoch=state.leader_epoch(placement),
                placement_epoch=placement.placement_epoch,
                is_moving=placement.is_moving,
                moving_to_node_id=placement.moving_to_node_id,
                move_epoch=placement.move_epoch,
                is_fenced=placement.is_fenced,
            )
            for placement in topic.placements
        ],
        configs=topic.configs,
        internal=topic.internal,
    )


def describe_partitions(state: CoordinatorState, topic_names: Sequence[str]) -> pb.DescribePartitionsResponse:
    """Who leads what of some topics, or (without names) of all; KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
    answer = pb.DescribePartitionsResponse()
    for name in topic_names or sorted(state.topic_ids):
        topic = state.topic_named(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name[:300]}")
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


def _group_config(state: CoordinatorState, group_id: str) -> pb.GroupConfig:
    """Without entries where the group has none any more."""
    texts = state.group_configs.get(group_id, {})
    entries = [pb.ConfigEntry(name=name, value=value) for name, value in sorted(texts.items())]
    return pb.GroupConfig(group_id=group_id, configs=entries)


def _broker_config(state: CoordinatorState, broker_id: str) -> pb.BrokerConfig:
    """Without entries where the broker has none any more."""
    texts = state.broker_configs.get(broker_id, {})
    entries = [pb.ConfigEntry(name=name, value=value) for name, value in sorted(texts.items())]
    return pb.BrokerConfig(broker_id=broker_id, configs=entries)


def _add_nodes(state: CoordinatorState, answer: pb.WatchCatalogResponse) -> None:
    answer.nodes_changed = True
    answer.nodes.extend(node for _, node in sorted(state.nodes.items()))
    answer.state_partition_owners.extend(
        state_partition for _, state_partition in sorted(state.state_partitions.items())
    )
    answer.state_partition_count = state.state_partition_count
