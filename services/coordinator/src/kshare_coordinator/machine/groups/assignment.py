"""Assignments of a member's partitions, for share and consumer groups, as values and as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

Assignment = Mapping[bytes, tuple[int, ...]]
"""Topic ids to the partitions, in order, that one member has of them."""


def assignment_of(topics: Iterable[pb.TopicPartitions]) -> Assignment:
    return {topic.topic_id: tuple(topic.partitions) for topic in topics}


def topics_of(assignment: Assignment) -> list[pb.TopicPartitions]:
    return [
        pb.TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in sorted(assignment.items())
    ]
