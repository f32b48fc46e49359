"""OffsetCommit, OffsetFetch, TxnOffsetCommit."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands, offsets_view
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Clients look the coordinator up again and go on."""


class OffsetHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def commit(self, request: pb.OffsetCommitRequest, payload: memoryview) -> pb.OffsetCommitResponse:
        try:
            return await self._core.submit(commands.OffsetCommit(request=request))
        except StorageFailure:
            return _unavailable(request)

    async def transactional_commit(
        self, request: pb.TxnOffsetCommitRequest, payload: memoryview
    ) -> pb.OffsetCommitResponse:
        try:
            return await self._core.submit(commands.TxnOffsetCommit(request=request))
        except StorageFailure:
            return _unavailable(request)

    async def fetch(self, request: pb.OffsetFetchRequest, payload: memoryview) -> pb.OffsetFetchResponse:
        try:
            return offsets_view.fetch(self._core.state, request)
        except StorageFailure:
            return pb.OffsetFetchResponse(error_code=UNAVAILABLE)


def _unavailable(request: pb.OffsetCommitRequest | pb.TxnOffsetCommitRequest) -> pb.OffsetCommitResponse:
    results = [
        pb.OffsetCommitResponse.Result(
            topic_id=offset.topic_id,
            topic_name=offset.topic_name,
            partition=offset.partition,
            error_code=UNAVAILABLE,
        )
        for offset in request.offsets
    ]
    return pb.OffsetCommitResponse(results=results)
