"""TransferStatePartition: rows of a state partition that moves away, for the share coordinator that it moves to."""

from __future__ import annotations

from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import TRANSFER_STATE_PARTITION
from kshare_rpc.network import Payload
from kshare_rpc.serving import answers
from kshare_share_coordinator.reassignment.sender import StatePartitionSender


class TransferStatePartitionHandler:
    """Answers `ShareCoordinator/TransferStatePartition`."""

    def __init__(self, sender: StatePartitionSender) -> None:
        self._sender = sender

    @answers(TRANSFER_STATE_PARTITION)
    async def __call__(
        self, request: messages.TransferStatePartitionRequest, payload: memoryview
    ) -> tuple[messages.TransferStatePartitionResponse, Payload]:
        piece = await self._sender.piece(
            request.state_partition, request.owner_epoch, request.after_key, request.max_bytes
        )
        response = messages.TransferStatePartitionResponse(
            error_code=piece.error_code, error_message=piece.error_message, is_last=piece.is_last
        )
        for row in piece.rows:
            response.rows.add(key_length=len(row.key), value_length=len(row.value))
        return response, [part for row in piece.rows for part in row]
