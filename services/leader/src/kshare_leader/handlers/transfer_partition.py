"""TransferPartition: sends rows of a partition that is being reassigned to the leader that takes it over."""

from __future__ import annotations

from zlib import crc32

from kshare_leader.handlers.partitions import key_of
from kshare_leader.reassignment.rows import Place
from kshare_leader.reassignment.sender import PartitionSender
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import TRANSFER_PARTITION
from kshare_rpc.network import Payload
from kshare_rpc.serving import answers


class TransferPartitionHandler:
    """Answers `Leader/TransferPartition`."""

    def __init__(self, sender: PartitionSender) -> None:
        self._sender = sender

    @answers(TRANSFER_PARTITION)
    async def __call__(
        self, request: leader_pb2.TransferPartitionRequest, payload: memoryview
    ) -> tuple[leader_pb2.TransferPartitionResponse, Payload]:
        after = Place(request.after_family, request.after_key) if request.after_family else None
        sent = self._sender.page(
            key_of(request), request.move_epoch, after, request.max_bytes, is_fenced=request.is_fenced
        )
        page = sent.page
        checksum = 0
        for row in page.rows:
            checksum = crc32(row.value, crc32(row.key, checksum))
        response = leader_pb2.TransferPartitionResponse(
            error_code=sent.error_code,
            error_message=sent.error_message,
            family=page.family,
            checksum=checksum,
            is_last=page.is_last,
            log_start_offset=sent.extent.start_offset,
            log_end_offset=sent.extent.end_offset,
        )
        for row in page.rows:
            response.rows.add(key_length=len(row.key), value_length=len(row.value))
        return response, [part for row in page.rows for part in row]
