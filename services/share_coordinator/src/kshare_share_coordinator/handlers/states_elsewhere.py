"""RPCs about a share coordinator's store, answered where states are in an existing cluster.

There is no `__share_group_state`: the records are those of the cluster's topic, which consumers read there. It also has
batches that do not count; `kshare_upstream.fenced_log` says which ones. Nothing is on this node to back up or to move.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    BACKUP_STATE,
    FETCH_STATE_TOPIC,
    LIST_STATE_TOPIC_OFFSETS,
    TRANSFER_STATE_PARTITION,
)
from kshare_rpc.network import Payload
from kshare_rpc.serving import answers, serves


class StatesElsewhere:
    """Answers UNKNOWN_TOPIC_OR_PARTITION for `__share_group_state`, and names `topic` where the store is asked for."""

    def __init__(self, topic: str) -> None:
        self._text = (
            f"with kshare.engine=kafka states are in the topic {topic} of the existing cluster, not on this node: the "
            "cluster's tools copy and restore it"
        )

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

    @serves(BACKUP_STATE)
    async def back_up(self, request: messages.BackupStateRequest, payload: memoryview) -> messages.BackupStateResponse:
        raise KafkaError(ErrorCode.INVALID_REQUEST, self._text)

    @answers(TRANSFER_STATE_PARTITION)
    async def transfer(
        self, request: messages.TransferStatePartitionRequest, payload: memoryview
    ) -> tuple[messages.TransferStatePartitionResponse, Payload]:
        refused = messages.TransferStatePartitionResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=self._text
        )
        return refused, []
