"""ReleaseShareSession: a share session ended, so what its member holds becomes available to others.

The deliveries count (KAFKA-19972). Fetches of the session that still wait are ended, so that nothing is acquired for it
afterwards. Answered when the release is durable.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.handlers.share_acknowledge import end_of, owner_of
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_rpc.generated.kshare.v1 import leader_pb2


async def release_session(
    directory: SharePartitionDirectory, request: leader_pb2.ReleaseShareSessionRequest
) -> leader_pb2.ReleaseShareSessionResponse:
    """Answers a ReleaseShareSession; the error is that of the first share-partition that has one."""
    owner = owner_of(request.owner)
    group_id = request.owner.group_id
    if request.partitions:
        keys = [
            SharePartitionKey(group_id, partition.topic_id, partition.partition) for partition in request.partitions
        ]
        found = [served for key in dict.fromkeys(keys) if (served := directory.find(key)) is not None]
    else:
        found = directory.of_group(group_id)
    begun = [served.release(owner.__eq__) for served in found]
    error_code = ErrorCode.NONE
    for stored in begun:
        error = await end_of(stored)
        if error is not None and error_code is ErrorCode.NONE:
            error_code = error.code
    return leader_pb2.ReleaseShareSessionResponse(error_code=error_code)
