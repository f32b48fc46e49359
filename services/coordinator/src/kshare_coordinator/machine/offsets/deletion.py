"""OffsetDelete, and the offsets that go with a deleted group (OffsetMetadataManager of Kafka 4.3.1)."""

from __future__ import annotations

from kshare_coordinator.machine.commands import DeleteOffsets, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.offsets.commits import topic_of
from kshare_coordinator.machine.offsets.permissions import check_delete, is_subscribed
from kshare_coordinator.machine.offsets.tombstones import records_of_deletion
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

Result = pb.OffsetDeleteResponse.Result


@decides(DeleteOffsets)
def decide_delete_offsets(
    state: CoordinatorState, command: DeleteOffsets
) -> Decision[Record, pb.OffsetDeleteResponse, Effect]:
    """A partition without an offset is no error; of a topic that the group consumes none is deleted."""
    request = command.request
    code = check_delete(state, request.group_id) if request.group_id else ErrorCode.INVALID_GROUP_ID
    if code:
        return Decision((), pb.OffsetDeleteResponse(error_code=code))
    results: list[Result] = []
    found: list[Record] = []
    for asked in request.topics:
        topic = topic_of(state, b"", asked.topic_name)
        subscribed = is_subscribed(state, request.group_id, asked.topic_name)
        for partition in asked.partitions:
            result = _refusal(topic, partition, subscribed)
            results.append(Result(topic_name=asked.topic_name, partition=partition, error_code=result))
            if topic is not None and not result:
                key = TopicPartition(topic.topic_id, partition)
                found.extend(records_of_deletion(state.offsets, request.group_id, key))
    return Decision(found, pb.OffsetDeleteResponse(results=results))


def _refusal(topic: records_pb.TopicRecord | None, partition: int, subscribed: bool) -> ErrorCode:
    if topic is None or not 0 <= partition < len(topic.placements):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
