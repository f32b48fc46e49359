"""DescribeTransactions (key 65), version 0: forwarded to the coordinator."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_transactional_id
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_gateway.transactions.coordinator_calls import ask_coordinator
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DESCRIBE_TRANSACTIONS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_transactions import DescribeTransactionsRequest
from kshare_wire.generated.responses.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    wanted = coordinator_pb2.DescribeTransactionsRequest(transactional_ids=request.transactional_ids)
    answer = await ask_coordinator(context, DESCRIBE_TRANSACTIONS, wanted)
    return DescribeTransactionsResponse(
        transaction_states=[_described(context, state) for state in answer.transaction_states]
    )


def failed(
    context: RequestContext, request: DescribeTransactionsRequest, error: KafkaError
) -> DescribeTransactionsResponse:
    refused = [
        TransactionState(error_code=error.code, transactional_id=transactional_id, transaction_start_time_ms=0)
        for transactional_id in request.transactional_ids
    ]
    return DescribeTransactionsResponse(transaction_states=refused)


def _described(
    context: RequestContext, state: coordinator_pb2.DescribeTransactionsResponse.TransactionState
) -> TransactionState:
    return TransactionState(
        error_code=state.error_code,
        transactional_id=state.transactional_id,
        transaction_state=state.transaction_state,
        transaction_timeout_ms=state.transaction_timeout_ms,
        transaction_start_time_ms=state.transaction_start_time_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        topics=[
            TopicData(topic=topic.topic_name, partitions=list(topic.partitions))
            for topic in state.topics
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic_name)
        ],
    )


serve(
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    VersionRange(0, 0),
    access=Access(each=each_transactional_id(Operation.DESCRIBE), by_handler="Describe on the topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("transactional_ids",), "transaction_states", described=str),
)
