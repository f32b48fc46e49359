"""InitProducerId (key 22), versions 0 to 5: an id and an epoch for an idempotent or a transactional producer.

From version 3 on the producer may name the id and epoch that it has (both, or none: INVALID_REQUEST), from version 4 on
it knows PRODUCER_FENCED. Version 6 (two-phase commit, KIP-939) is not stable in Kafka 4.3.1, which serves 5 as well.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, check_cluster, transactional_id
from kshare_gateway.served_apis import serve
from kshare_gateway.transactions.coordinator_calls import ask_any_coordinator, ask_coordinator, fencing_code
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import INIT_PRODUCER_ID
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.responses.init_producer_id import InitProducerIdResponse

FIRST_VERSION_WITH_PRODUCER_FENCED = 4


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        text = f"Producer id {request.producer_id} with epoch {request.producer_epoch}: set both, or both to -1"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    _check_idempotent_write(context, request)
    wanted = coordinator_pb2.InitProducerIdRequest(
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        has_transactional_id=request.transactional_id is not None,
        transactional_id=request.transactional_id or "",
        transaction_timeout_ms=request.transaction_timeout_ms,
    )
    ask = ask_coordinator if wanted.has_transactional_id else ask_any_coordinator
    answer = await ask(context, INIT_PRODUCER_ID, wanted)
    code = fencing_code(answer.error_code, context.version, FIRST_VERSION_WITH_PRODUCER_FENCED)
    return InitProducerIdResponse(error_code=code, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


def _check_idempotent_write(context: RequestContext, request: InitProducerIdRequest) -> None:
    """KafkaError if a producer without transactions may neither write idempotently nor write to any topic."""
    authorizer = context.gateway.authorizer
    if request.transactional_id is not None or authorizer is None:
        return
    client = (context.principal, context.client_host[1:])
    if not authorizer.allows_any(*client, Operation.WRITE, ResourceType.TOPIC):
        check_cluster(context, Operation.IDEMPOTENT_WRITE)


def failed(context: RequestContext, request: InitProducerIdRequest, error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)


serve(
    InitProducerIdRequest,
    InitProducerIdResponse,
    VersionRange(0, 5),
    access=Access(
        (transactional_id(Operation.WRITE),),
        by_handler="without a transactional id: IdempotentWrite on the cluster, or Write on any topic",
    ),
    handle=handle,
    failed=failed,
)
