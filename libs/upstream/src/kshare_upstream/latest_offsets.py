"""ListOffsets of many partitions: one request for each broker, whose answers may be incomplete."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import ErrorCode
from kshare_upstream.partition_log import LIST_OFFSETS
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic


async def offsets_at_broker(
    upstream: Upstream, node_id: int, partitions: Sequence[UpstreamPartitionName], timestamp: int
) -> dict[UpstreamPartitionName, int]:
    """The offsets at EARLIEST_TIMESTAMP or LATEST_TIMESTAMP of partitions that a broker leads.

    Partitions that it does not lead, or cannot answer for now, are left out.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for at in partitions:
        wanted = ListOffsetsPartition(partition_index=at.partition, timestamp=timestamp)
        topics.setdefault(at.topic, []).append(wanted)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in topics.items()]
    )
    answer = await upstream.ask_broker(node_id, request, LIST_OFFSETS)
    return {
        UpstreamPartitionName(topic.name, partition.partition_index): partition.offset
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE
    }
