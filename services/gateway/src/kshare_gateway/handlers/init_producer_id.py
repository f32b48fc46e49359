"""InitProducerId (key 22), versions 0 to 6: ids for idempotent producers; the epoch is bumped from version 3 on.

Transactions are not served yet: a transactional id gets INVALID_TXN_STATE, which ends a transactional producer clearly.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import INIT_PRODUCER_ID
from kshare_rpc.network import CallFailed
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    if request.transactional_id is not None:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"Transactions are not supported (transactional id {request.transactional_id})"
        )
    has_id = context.version >= 3
    wanted = coordinator_pb2.InitProducerIdRequest(
        producer_id=request.producer_id if has_id else -1, producer_epoch=request.producer_epoch if has_id else -1
    )
    try:
        answer = await context.gateway.call_coordinator(INIT_PRODUCER_ID, wanted)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure
    return _body(answer.error_code, answer.producer_id, answer.producer_epoch)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return _body(error.code, -1, -1)


def _body(error_code: int, producer_id: int, producer_epoch: int) -> Body:
    return {
        "error_code": error_code,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "ongoing_txn_producer_id": -1,
        "ongoing_txn_producer_epoch": -1,
    }
