"""Comparison of stored states with their logs: finds states with offsets beyond the log's end.

A leader truncates such a state when it loads the share-partition, at the next fetch of a member. Until then the two
disagree. Metadata (key 3) returns the topics' names, ListOffsets (key 2) the ends of their logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.kafka_connection import KafkaConnection, connect_to_any
from kshare_core.identifiers import TopicPartition
from kshare_share_coordinator.maintenance.verification import VerifiedState
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kshare_wire.generated.requests.metadata import MetadataRequest

METADATA_VERSION, LIST_OFFSETS_VERSION = 12, 7
LATEST = -1
PARTITIONS_PER_REQUEST = 1_000
LEADER_WAIT_S = 30.0
"""How long requests for a partition without a leader are retried: a restarting leader serves it soon."""
POLL_INTERVAL_S = 0.2


def states_beyond_logs(
    bootstrap: str, states: Sequence[VerifiedState], properties: Properties = NO_PROPERTIES
) -> list[str]:
    """One sentence for each state with offsets beyond its log's end, or without a response of the leader in time."""
    with connect_to_any(bootstrap, properties=properties) as connection:
        names = _topic_names(connection)
        found = dict.fromkeys(state.key.topic_partition for state in states if state.key.topic_id in names)
        log_ends = _log_ends(connection, list(found), names)
        deadline = time.monotonic() + LEADER_WAIT_S
        while missing := [key for key in found if key not in log_ends]:
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_INTERVAL_S)
            log_ends |= _log_ends(connection, missing, names)
    return [text for state in states if (text := _disagreement(state, names, log_ends))]


def _disagreement(state: VerifiedState, names: dict[bytes, str], log_ends: dict[TopicPartition, int]) -> str | None:
    key = state.key
    if key.topic_id not in names:
        return None  # the topic is deleted, and its state will be
    name = f"group {key.group_id}, {names[key.topic_id]}-{key.partition}"
    log_end = log_ends.get(key.topic_partition, -1)
    if log_end < 0:
        return f"{name}: not compared, no leader returned the log's end offset within {LEADER_WAIT_S:g} s"
    if state.end_offset <= log_end:
        return None
    return (
        f"{name}: the state has offsets up to {state.end_offset - 1} (start offset {state.start_offset}), but the log "
        f"ends at {log_end}. The leader truncates the state there at the group's next fetch"
    )


def _topic_names(connection: KafkaConnection) -> dict[bytes, str]:
    answer = connection.call(MetadataRequest(topics=None), METADATA_VERSION)
    return {topic.topic_id: topic.name for topic in answer.topics if topic.name is not None}


def _log_ends(
    connection: KafkaConnection, keys: Sequence[TopicPartition], names: dict[bytes, str]
) -> dict[TopicPartition, int]:
    ids = {name: topic_id for topic_id, name in names.items()}
    log_ends: dict[TopicPartition, int] = {}
    for start in range(0, len(keys), PARTITIONS_PER_REQUEST):
        request = _request(keys[start : start + PARTITIONS_PER_REQUEST], names)
        for topic in connection.call(request, LIST_OFFSETS_VERSION).topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    key = TopicPartition(ids[topic.name], partition.partition_index)
                    log_ends[key] = partition.offset
    return log_ends


def _request(keys: Iterable[TopicPartition], names: dict[bytes, str]) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for key in keys:
        entry = ListOffsetsPartition(partition_index=key.partition, timestamp=LATEST)
        by_topic.setdefault(names[key.topic_id], []).append(entry)
    topics = tuple(ListOffsetsTopic(name=name, partitions=tuple(wanted)) for name, wanted in by_topic.items())
    return ListOffsetsRequest(replica_id=-1, topics=topics)
