"""OffsetFetch: looks at committed offsets, changes nothing (OffsetMetadataManager of Kafka 4.3.1).

A group that does not exist, and a share group, have no committed offsets; that is no error. A partition without an
offset is answered with -1 and an empty metadata.
"""

from __future__ import annotations

from kshare_coordinator.machine.offsets.commits import has_id, topic_of
from kshare_coordinator.machine.offsets.permissions import check_fetch
from kshare_coordinator.machine.offsets.table import OffsetCommitValue
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

NO_OFFSET, NO_LEADER_EPOCH = -1, -1

Result = pb.OffsetFetchResponse.Result


def fetch(state: CoordinatorState, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
    """All partitions with an offset by topic name and partition, or those asked in the order asked."""
    code = check_fetch(state, request.group_id, request.member_id, request.member_epoch)
    if code:
        return pb.OffsetFetchResponse(error_code=code)
    results = _all(state, request) if request.all_topics else _asked(state, request)
    return pb.OffsetFetchResponse(results=results)


def _all(state: CoordinatorState, request: pb.OffsetFetchRequest) -> list[Result]:
    found = []
    for key, value in state.offsets.committed.get(request.group_id, {}).items():
        topic = topic_of(state, key.topic_id, "")
        if topic is not None:
            found.append((topic.name, key, value))
    found.sort(key=lambda entry: (entry[0], entry[1].partition))
    return [_result(state, request, name, key, value) for name, key, value in found]


def _asked(state: CoordinatorState, request: pb.OffsetFetchRequest) -> list[Result]:
    found: list[Result] = []
    for asked in request.topics:
        topic = topic_of(state, asked.topic_id, asked.topic_name)
        for partition in asked.partitions:
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if has_id(asked.topic_id) else ErrorCode.NONE
                key = TopicPartition(asked.topic_id, partition)
                found.append(Result(offset=_offset(asked.topic_name, key, None), error_code=code))
                continue
            key = TopicPartition(topic.topic_id, partition)
            value = state.offsets.get(request.group_id, key)
            found.append(_result(state, request, topic.name, key, value))
    return found


def _result(
    state: CoordinatorState,
    request: pb.OffsetFetchRequest,
    topic_name: str,
    key: TopicPartition,
    value: OffsetCommitValue | None,
) -> Result:
    if request.require_stable and state.offsets.is_open(request.group_id, key):
        return Result(offset=_offset(topic_name, key, None), error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return Result(offset=_offset(topic_name, key, value))


def _offset(topic_name: str, key: TopicPartition, value: OffsetCommitValue | None) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        topic_id=key.topic_id,
        topic_name=topic_name,
        partition=key.partition,
        committed_offset=NO_OFFSET if value is None else value.offset,
        committed_leader_epoch=NO_LEADER_EPOCH if value is None else value.leader_epoch,
        committed_metadata="" if value is None else value.metadata,
    )
