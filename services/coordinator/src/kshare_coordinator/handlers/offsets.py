"""Handlers of OffsetCommit, OffsetFetch, TxnOffsetCommit.

If another coordinator owns the transactions, a TxnOffsetCommit is verified with it first; see
`transaction_owners`.
"""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.offsets import view as offsets_view
from kshare_coordinator.transaction_owners import TransactionOwners
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves


def _refused(
    request: pb.OffsetCommitRequest | pb.TxnOffsetCommitRequest, code: ErrorCode, message: str
) -> pb.OffsetCommitResponse:
    """An answer with the code at each offset; the answer as a whole has it only for NOT_COORDINATOR."""
    results = [
        pb.OffsetCommitResponse.Result(
            topic_id=offset.topic_id,
            topic_name=offset.topic_name,
            partition=offset.partition,
            error_code=code,
        )
        for offset in request.offsets
    ]
    if code is not ErrorCode.NOT_COORDINATOR:
        return pb.OffsetCommitResponse(results=results)
    return pb.OffsetCommitResponse(results=results, error_code=code, error_message=message)


class OffsetHandlers:
    def __init__(self, core: Core, owners: TransactionOwners) -> None:
        self._core = core
        self._owners = owners

    @serves(methods.OFFSET_COMMIT, refused=_refused)
    async def commit(self, request: pb.OffsetCommitRequest, payload: memoryview) -> pb.OffsetCommitResponse:
        return await self._core.submit(commands.OffsetCommit(request=request))

    @serves(methods.TXN_OFFSET_COMMIT, refused=_refused)
    async def transactional_commit(
        self, request: pb.TxnOffsetCommitRequest, payload: memoryview
    ) -> pb.OffsetCommitResponse:
        self._core.state_of_group(request.group_id)
        code = None
        if not self._core.has_catalog():
            code = await self._owners.transaction_code(request)
        return await self._core.submit(commands.TxnOffsetCommit(request=request, transaction_code=code))

    @serves(methods.OFFSET_FETCH)
    async def fetch(self, request: pb.OffsetFetchRequest, payload: memoryview) -> pb.OffsetFetchResponse:
        return offsets_view.fetch(self._core.state_of_group(request.group_id), request)
