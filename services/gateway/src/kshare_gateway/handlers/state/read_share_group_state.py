"""ReadShareGroupState (key 84), version 0; see `state.requests`.

A leader epoch of -1 only reads. A larger one than the stored fences the leaders before, so clients must not invent one.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_gateway.state.requests import Results, StateApi, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.read_share_group_state import PartitionData, ReadShareGroupStateRequest
from kshare_wire.generated.responses.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)


async def handle(context: RequestContext, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
    return _response(await ask_share_coordinators(context, request, _API))


def failed(
    context: RequestContext, request: ReadShareGroupStateRequest, error: KafkaError
) -> ReadShareGroupStateResponse:
    return _response(refuse_all(request, error, _API))


def _partition(key: SharePartitionKey, entry: PartitionData) -> messages.ReadShareGroupStateRequest.SharePartition:
    return messages.ReadShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=entry.leader_epoch,
    )


def _refusal(partition: int, code: int, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=code, error_message=message)


def _result(result: messages.ReadShareGroupStateResponse.Result) -> PartitionResult:
    return PartitionResult(
        partition=result.partition,
        state_epoch=result.state_epoch,
        start_offset=result.start_offset,
        state_batches=[
            StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in result.state_batches
        ],
    )


def _response(results: Results[PartitionResult]) -> ReadShareGroupStateResponse:
    topics = [ReadStateResult(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
    return ReadShareGroupStateResponse(results=topics)


_API = StateApi(READ_SHARE_GROUP_STATE, _partition, _refusal, _result, reads=True)


serve(
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.CLUSTER_ACTION),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
