"""Topics as consumer groups see them: those of the catalog, and the internal ones that no leader has.

As in Kafka, a group may subscribe to `__share_group_state` and `__consumer_offsets`, by name or by an expression that
matches, and commit offsets of them. What it may read of them is the gateways' matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, STATE_TOPIC
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb


def visible_topic(state: CoordinatorState, topic_id: bytes) -> records_pb.TopicRecord | None:
    """None: there is no such topic."""
    for name, internal_id in INTERNAL_TOPICS.items():
        if topic_id == internal_id:
            return visible_topic_named(state, name)
    return state.topics.get(topic_id)


def visible_topic_named(state: CoordinatorState, name: str) -> records_pb.TopicRecord | None:
    """None: there is no such topic. Of an internal one, what subscriptions and commits need of it."""
    if name == STATE_TOPIC:
        return _internal_topic(name, state.state_partition_count)
    if name == CONSUMER_OFFSETS_TOPIC:
        return _internal_topic(name, state.consumer_offsets_partition_count)
    return state.topic_named(name)


def visible_names(state: CoordinatorState) -> Iterator[str]:
    """In no order."""
    yield from state.topic_ids
    yield from (name for name in INTERNAL_TOPICS if visible_topic_named(state, name) is not None)


@lru_cache(maxsize=8)
def _internal_topic(name: str, partition_count: int) -> records_pb.TopicRecord | None:
    """None before there is one: it has no partitions."""
    placements = [records_pb.TopicRecord.Placement(partition=index) for index in range(partition_count)]
    topic = records_pb.TopicRecord(topic_id=INTERNAL_TOPICS[name], name=name, placements=placements, internal=True)
    return topic if placements else None
