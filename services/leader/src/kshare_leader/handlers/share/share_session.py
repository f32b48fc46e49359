"""ReleaseShareSession: releases the records that a member acquired in a share session that has ended.

Their deliveries count (KAFKA-19972), except those of `undelivered_fetch_numbers`, which reached no client: a record at
its last attempt would be archived without having been delivered as often as the limit says. Waiting fetches of the
session are ended, so that nothing is acquired for it afterwards. `last_fetch_number` protects a newer session of the
same member from a late release. The answer is sent when the release is durable.

With `lost_fetch_numbers` the session continues, and only the records that these fetches acquired are released. The
gateway did not get their answers, or does not deliver the records, so no client saw these and their deliveries do not
count.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.handlers.share.share_acknowledge import end_of, owner_of
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2

NEVER_REACHED = 1 << 62
"""Above every fetch number: a release without one covers all records that the member has acquired."""


async def release_session(
    directory: SharePartitionDirectory, request: leader_pb2.ReleaseShareSessionRequest
) -> leader_pb2.ReleaseShareSessionResponse:
    """Answers a ReleaseShareSession; the error is that of the first share-partition that has one."""
    owner = owner_of(request.owner)
    found = _named(directory, request)
    if request.lost_fetch_numbers:
        lost = frozenset(request.lost_fetch_numbers)
        for served in found:
            served.take_back(owner, lost)
        return leader_pb2.ReleaseShareSessionResponse()
    last_fetch_number = request.last_fetch_number or NEVER_REACHED
    directory.fetch_sessions.forget(request.owner.group_id, owner, last_fetch_number)
    if request.undelivered_fetch_numbers:
        undelivered = frozenset(request.undelivered_fetch_numbers)
        for served in found:
            served.take_back(owner, undelivered)
    begun = [served.release_until(owner, last_fetch_number) for served in found]
    error_code = ErrorCode.NONE
    for stored in begun:
        error = await end_of(stored)
        if error is not None and error_code is ErrorCode.NONE:
            error_code = error.code
    return leader_pb2.ReleaseShareSessionResponse(error_code=error_code)


def _named(directory: SharePartitionDirectory, request: leader_pb2.ReleaseShareSessionRequest) -> list[ServedPartition]:
    group_id = request.owner.group_id
    if request.partitions:
        keys = [
            SharePartitionKey(group_id, partition.topic_id, partition.partition) for partition in request.partitions
        ]
        return [served for key in dict.fromkeys(keys) if (served := directory.find(key)) is not None]
    return directory.of_group(group_id)
