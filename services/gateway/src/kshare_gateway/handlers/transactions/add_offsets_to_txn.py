"""AddOffsetsToTxn (key 25), versions 0 to 4: forwarded to the coordinator.

Clients know PRODUCER_FENCED from version 2 on.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, group, transactional_id
from kshare_gateway.served_apis import serve
from kshare_gateway.transactions.coordinator_calls import ask_coordinator, fencing_code
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import ADD_OFFSETS_TO_TXN
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.add_offsets_to_txn import AddOffsetsToTxnRequest
from kshare_wire.generated.responses.add_offsets_to_txn import AddOffsetsToTxnResponse

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


async def handle(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    wanted = coordinator_pb2.AddOffsetsToTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
    )
    answer = await ask_coordinator(context, ADD_OFFSETS_TO_TXN, wanted)
    return AddOffsetsToTxnResponse(
        error_code=fencing_code(answer.error_code, context.version, FIRST_VERSION_WITH_PRODUCER_FENCED)
    )


serve(
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    VersionRange(0, 4),
    access=Access((transactional_id(Operation.WRITE), group(Operation.READ))),
    handle=handle,
)
