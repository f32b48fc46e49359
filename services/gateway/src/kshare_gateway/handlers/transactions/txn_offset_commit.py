"""TxnOffsetCommit (key 28), versions 0 to 5: forwarded to the coordinator.

From version 5 on this request adds the offsets to the transaction; before, AddOffsetsToTxn must have done so. Clients
know TRANSACTION_ABORTABLE from version 4 on (KIP-890); older ones get INVALID_TXN_STATE.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.handlers.offsets.offset_commit import committed_offset
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic, group, transactional_id
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import TXN_OFFSET_COMMIT
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.txn_offset_commit import TxnOffsetCommitRequest
from kshare_wire.generated.responses.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

FIRST_VERSION_THAT_ADDS = 5
FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 4


async def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    wanted = coordinator_pb2.TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
        add_to_transaction=context.version >= FIRST_VERSION_THAT_ADDS,
        offsets=[committed_offset(b"", topic.name, entry) for topic in request.topics for entry in topic.partitions],
    )
    answer = await context.gateway.call_group_coordinator(request.group_id, TXN_OFFSET_COMMIT, wanted)
    return _response(request, [_code(context, result.error_code) for result in answer.results])


def failed(context: RequestContext, request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    return _response(request, repeat(error.code))


def _response(request: TxnOffsetCommitRequest, codes: Iterable[int]) -> TxnOffsetCommitResponse:
    """`codes` has one for each partition, in the request's order."""
    remaining = iter(codes)
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=entry.partition_index, error_code=next(remaining))
                for entry in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def _code(context: RequestContext, code: int) -> int:
    if code == ErrorCode.TRANSACTION_ABORTABLE and context.version < FIRST_VERSION_WITH_TRANSACTION_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


serve(
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    VersionRange(0, 5),
    access=Access((transactional_id(Operation.WRITE), group(Operation.READ)), each_topic(Operation.READ)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
