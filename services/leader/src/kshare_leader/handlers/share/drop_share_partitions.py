"""DropSharePartitions: discards cached state of share-partitions that an administrator replaced or deleted.

The state at the share coordinators has changed, so the former state in memory is dropped, also while it is being read.
Waiting fetches get NOT_LEADER_OR_FOLLOWER, and the next request reads the new state. Nothing more is written: the
former state epoch is fenced. An acknowledgement whose write is in flight is answered with that write's outcome.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_rpc.generated.kshare.v1 import leader_pb2


async def drop_share_partitions(
    directory: SharePartitionDirectory, request: leader_pb2.DropSharePartitionsRequest
) -> leader_pb2.DropSharePartitionsResponse:
    """Drops the share-partitions; answers when none of them is served with its former state."""
    for entry in request.partitions:
        key = SharePartitionKey(request.group_id, entry.topic_id, entry.partition)
        served = directory.find(key)
        if served is not None:
            text = f"the state of {key} was replaced or deleted by an administrator"
            served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
        directory.metrics.forget_share_partition(key)
    return leader_pb2.DropSharePartitionsResponse()
