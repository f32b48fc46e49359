"""ListTransactions (key 66), versions 0 to 2: forwarded to the coordinator, which has all transactions.

Version 1 filters by how long a transaction is open, version 2 by a pattern of transactional ids.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_gateway.transactions.coordinator_calls import ask_any_coordinator
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LIST_TRANSACTIONS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_transactions import ListTransactionsRequest
from kshare_wire.generated.responses.list_transactions import ListTransactionsResponse, TransactionState


async def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    wanted = coordinator_pb2.ListTransactionsRequest(
        state_filters=request.state_filters,
        producer_id_filters=request.producer_id_filters,
        duration_filter_ms=request.duration_filter,
        transactional_id_pattern=request.transactional_id_pattern or "",
    )
    answer = await ask_any_coordinator(context, LIST_TRANSACTIONS, wanted)
    described: list[TransactionState] = []
    count = context.count_elements()
    for state in answer.transaction_states:
        if context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id):
            described.append(
                TransactionState(
                    transactional_id=state.transactional_id,
                    producer_id=state.producer_id,
                    transaction_state=state.transaction_state,
                )
            )
        if count.add():
            await count.next_slice()
    return ListTransactionsResponse(
        error_code=answer.error_code,
        unknown_state_filters=list(answer.unknown_state_filters),
        transaction_states=described,
    )


serve(
    ListTransactionsRequest,
    ListTransactionsResponse,
    VersionRange(0, 2),
    access=Access(by_handler="Describe on the transactional ids"),
    handle=handle,
    size=ResponseSize.LONG,
)
