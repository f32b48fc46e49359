"""EndTxn (key 26), versions 0 to 5: forwarded to the coordinator.

Clients know PRODUCER_FENCED from version 2 on. With version 5 the end of a transaction gives the producer a new id and
epoch (KIP-890); older versions keep theirs.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, transactional_id
from kshare_gateway.served_apis import serve
from kshare_gateway.transactions.coordinator_calls import ask_coordinator, fencing_code
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import END_TXN
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.end_txn import EndTxnRequest
from kshare_wire.generated.responses.end_txn import EndTxnResponse

FIRST_VERSION_WITH_PRODUCER_FENCED = 2
FIRST_VERSION_THAT_BUMPS_EPOCH = 5


async def handle(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    wanted = coordinator_pb2.EndTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        committed=request.committed,
        bumps_epoch=context.version >= FIRST_VERSION_THAT_BUMPS_EPOCH,
    )
    answer = await ask_coordinator(context, END_TXN, wanted)
    code = fencing_code(answer.error_code, context.version, FIRST_VERSION_WITH_PRODUCER_FENCED)
    return EndTxnResponse(error_code=code, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


serve(
    EndTxnRequest,
    EndTxnResponse,
    VersionRange(0, 5),
    access=Access((transactional_id(Operation.WRITE),)),
    handle=handle,
)
