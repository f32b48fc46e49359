"""EndAcquisitions: an administrator releases or rejects Acquired records, whichever member holds them.

It is for records that a member holds and does not end: a worker that hangs and keeps renewing, or a lock of hours. The
records go the way of a member's RELEASE or REJECT: to Available, or at the delivery count limit to the dead letters or
Archived. The member's later acknowledgement is INVALID_RECORD_STATE. The answer is sent when the change is durable.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.states import AcknowledgeType
from kshare_leader.handlers.share.share_acknowledge import end_of
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_rpc.generated.kshare.v1 import leader_pb2

ALLOWED = (AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


async def end_acquisitions(
    directory: SharePartitionDirectory, request: leader_pb2.EndAcquisitionsRequest
) -> leader_pb2.EndAcquisitionsResponse:
    """Answers with the number of records; INVALID_RECORD_STATE if none of the range is acquired."""
    try:
        return leader_pb2.EndAcquisitionsResponse(record_count=await _ended(directory, request))
    except KafkaError as error:
        return leader_pb2.EndAcquisitionsResponse(error_code=error.code, error_message=error.message)


async def _ended(directory: SharePartitionDirectory, request: leader_pb2.EndAcquisitionsRequest) -> int:
    first, last = request.first_offset, request.last_offset
    if request.acknowledge_type not in ALLOWED:
        text = f"acknowledge type {request.acknowledge_type} is not allowed; 2 (RELEASE) and 3 (REJECT) are"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if not 0 <= first <= last:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"offsets {first}-{last} are no range")
    key = SharePartitionKey(request.group_id, request.topic_id, request.partition)
    directory.check_leadership(key.topic_partition)
    served = directory.find(key)
    count, stored = 0, None
    if served is not None and served.machine is not None:
        if request.dry_run:
            count = served.machine.held_in(first, last)
        else:
            count, stored = served.end_acquisitions(first, last, AcknowledgeType(request.acknowledge_type))
    if not count:
        text = f"no record at offsets {first}-{last} of share-partition {key} is acquired, or its end is being written"
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
    error = await end_of(stored)
    if error is not None:
        raise error
    return count
