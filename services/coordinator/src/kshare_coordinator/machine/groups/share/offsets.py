"""DescribeShareGroupOffsets: selects the share-partitions, finds the nodes to query, and builds the answer.

Rules (GroupCoordinatorService of Kafka 4.3.1, KIP-1226):
- Without topics it describes all share-partitions of the group that are initialized and whose topics exist. A group
  that has none, or does not exist, has an empty answer.
- lag = end offset of the log - start offset - records from there on that are delivered to their end. It is -1, not
  known, while the start offset or that number of records is -1. Where the start offset lies beyond the log's end (an
  administrator set it there, or the log lost records, and no member came since) it is 0; Kafka's is below 0 then.
- A share-partition that was never initialized, or whose topic does not exist, has start offset -1 and no error.
- Where Kafka answers -1 because it could not reach the share coordinator, the share-partition gets that error here.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID, SharePartitionKey, TopicPartition, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb

UNKNOWN_START_OFFSET = UNKNOWN_COUNT = UNKNOWN_LAG = -1
NO_LEADER_EPOCH = 0
NO_STATE_CODES = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""Error codes with which a share coordinator answers if the share-partition has no state."""

Result = pb.DescribeShareGroupOffsetsResponse.Result


class Described(NamedTuple):
    """A share-partition of the answer; `topic_id` is all zeros where the topic does not exist."""

    topic_name: str
    key: TopicPartition


class Summary(NamedTuple):
    """A share coordinator's summary of a share-partition, or the error of the call."""

    start_offset: int
    leader_epoch: int
    delivery_complete_count: int
    error_code: int = ErrorCode.NONE
    error_message: str = ""

    @property
    def needs_end_offset(self) -> bool:
        """Whether there is a lag, so that the end of the log must be known."""
        has_figures = self.start_offset != UNKNOWN_START_OFFSET and self.delivery_complete_count != UNKNOWN_COUNT
        return has_figures and not self.error_code


class EndOffset(NamedTuple):
    """The end offset of a partition's log, or the error of the call to its leader."""

    offset: int
    error_code: int = ErrorCode.NONE
    error_message: str = ""


NO_STATE = Summary(UNKNOWN_START_OFFSET, NO_LEADER_EPOCH, UNKNOWN_COUNT)


def described(state: CoordinatorState, request: pb.DescribeShareGroupOffsetsRequest) -> list[Described]:
    """The share-partitions of the answer, in its order: as requested, or by topic name."""
    if not request.all_topics:
        return [
            Described(asked.topic_name, TopicPartition(_id_of(state, asked.topic_name), partition))
            for asked in request.topics
            for partition in asked.partitions
        ]
    group = state.share_groups.get(request.group_id)
    initialized = group.partitions.initialized if group else {}
    topics = sorted((topic.name, topic_id) for topic_id in initialized if (topic := state.topics.get(topic_id)))
    return [
        Described(name, TopicPartition(topic_id, partition))
        for name, topic_id in topics
        for partition in initialized[topic_id].partitions
    ]


def _id_of(state: CoordinatorState, topic_name: str) -> bytes:
    topic = state.topic_named(topic_name)
    return ZERO_TOPIC_ID if topic is None else topic.topic_id


def share_coordinator_address(state: CoordinatorState, group_id: str, key: TopicPartition) -> str | None:
    """The RPC address of the owner of the share-partition's state; None while it has no owner."""
    state_partition = state_partition_of(SharePartitionKey(group_id, *key), state.state_partition_count)
    owner = state.state_partition_owners.get(state_partition)
    node = None if owner is None else state.nodes.get((pb.ROLE_SHARE_COORDINATOR, owner))
    return node.rpc_address if node else None


def state_owner_epoch(state: CoordinatorState, group_id: str, key: TopicPartition) -> int:
    """The owner epoch of the share-partition's state partition; 0 where it has no owner."""
    state_partition = state_partition_of(SharePartitionKey(group_id, *key), state.state_partition_count)
    owner = state.state_partitions.get(state_partition)
    return 0 if owner is None else owner.owner_epoch


def leader_address(state: CoordinatorState, key: TopicPartition) -> str | None:
    """The RPC address of the partition's leader; None if it has no leader or does not exist."""
    placement = _placement(state, key)
    node = placement and state.nodes.get((pb.ROLE_LEADER, placement.leader_node_id))
    return node.rpc_address if node else None


def leader_epoch(state: CoordinatorState, key: TopicPartition) -> int:
    """-1 where the partition does not exist."""
    placement = _placement(state, key)
    return -1 if placement is None else state.leader_epoch(placement)


def _placement(state: CoordinatorState, key: TopicPartition) -> records_pb.TopicRecord.Placement | None:
    topic = state.topics.get(key.topic_id)
    exists = topic is not None and 0 <= key.partition < len(topic.placements)
    return topic.placements[key.partition] if topic is not None and exists else None


def summary_of(result: share_pb.ReadShareGroupStateSummaryResponse.Result) -> Summary:
    if result.error_code in NO_STATE_CODES:
        return NO_STATE
    return Summary(
        result.start_offset,
        result.leader_epoch,
        result.delivery_complete_count,
        result.error_code,
        result.error_message,
    )


def answer_of(entry: Described, summary: Summary, end: EndOffset | None) -> Result:
    """One share-partition of the answer; `end` is not None where `summary.needs_end_offset`."""
    answer = Result(
        topic_id=entry.key.topic_id,
        topic_name=entry.topic_name,
        partition=entry.key.partition,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=UNKNOWN_LAG,
    )
    failure = summary if summary.error_code or end is None else end
    if failure.error_code:
        answer.start_offset, answer.leader_epoch = UNKNOWN_START_OFFSET, NO_LEADER_EPOCH
        answer.error_code, answer.error_message = failure.error_code, failure.error_message
    elif end is not None:
        answer.lag = max(0, end.offset - summary.start_offset - summary.delivery_complete_count)
    return answer
