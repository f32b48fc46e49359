"""ListOffsets of many partitions: one request for each broker, whose answers may be incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshare_core.errors import ErrorCode
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kshare_wire.generated.responses.list_offsets import ListOffsetsPartitionResponse

LIST_OFFSETS = VersionRange(2, 8)


async def list_offsets(
    upstream: Upstream, node_id: int, timestamps: Mapping[UpstreamPartitionName, int], *, read_committed: bool = False
) -> dict[UpstreamPartitionName, ListOffsetsPartitionResponse]:
    """What a broker answers about partitions, each with the timestamp that is looked up."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for at, timestamp in timestamps.items():
        wanted = ListOffsetsPartition(partition_index=at.partition, timestamp=timestamp)
        topics.setdefault(at.topic, []).append(wanted)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in topics.items()],
    )
    answer = await upstream.ask_broker(node_id, request, LIST_OFFSETS)
    return {
        UpstreamPartitionName(topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


async def offsets_at_broker(
    upstream: Upstream, node_id: int, partitions: Sequence[UpstreamPartitionName], timestamp: int
) -> dict[UpstreamPartitionName, int]:
    """The offsets at EARLIEST_TIMESTAMP or LATEST_TIMESTAMP of partitions that a broker leads.

    Partitions that it does not lead, or cannot answer for now, are left out.
    """
    answers = await list_offsets(upstream, node_id, dict.fromkeys(partitions, timestamp))
    return {at: answer.offset for at, answer in answers.items() if answer.error_code == ErrorCode.NONE}
