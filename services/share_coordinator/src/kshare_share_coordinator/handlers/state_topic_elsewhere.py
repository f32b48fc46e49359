"""FetchStateTopic and ListStateTopicOffsets where states are in an existing cluster: there is no `__share_group_state`.

The records are those of the cluster's topic `<kshare.upstream.topic.prefix>state`, which consumers read there. It also
has batches that do not count; `kshare_upstream.fenced_log` says which ones.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH_STATE_TOPIC, LIST_STATE_TOPIC_OFFSETS
from kshare_rpc.serving import answers


class StateTopicElsewhere:
    """Answers UNKNOWN_TOPIC_OR_PARTITION for every partition."""

    @answers(FETCH_STATE_TOPIC)
    async def fetch(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, list[bytes]]:
        return leader_pb2.FetchResponse(
            partitions=[
                leader_pb2.FetchResponse.Partition(
                    topic_id=asked.topic_id,
                    partition=asked.partition,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    high_watermark=-1,
                    last_stable_offset=-1,
                    log_start_offset=-1,
                )
                for asked in request.partitions
            ]
        ), []

    @answers(LIST_STATE_TOPIC_OFFSETS)
    async def list_offsets(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        return leader_pb2.ListOffsetsResponse(
            partitions=[
                leader_pb2.ListOffsetsResponse.Partition(
                    topic_id=wanted.topic_id,
                    partition=wanted.partition,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    timestamp=-1,
                    offset=-1,
                )
                for wanted in request.partitions
            ]
        )
