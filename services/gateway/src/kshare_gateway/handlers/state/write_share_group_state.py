"""WriteShareGroupState (key 85), versions 0 and 1 (DeliveryCompleteCount); see `state.requests`.

Version 0 does not know how many records are done, so its writes say -1: not known.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import Results, StateApi, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import WRITE_SHARE_GROUP_STATE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.write_share_group_state import PartitionData, WriteShareGroupStateRequest
from kshare_wire.generated.responses.write_share_group_state import (
    PartitionResult,
    WriteShareGroupStateResponse,
    WriteStateResult,
)


async def handle(context: RequestContext, request: WriteShareGroupStateRequest) -> WriteShareGroupStateResponse:
    return _response(await ask_share_coordinators(context, request, _API))


def failed(
    context: RequestContext, request: WriteShareGroupStateRequest, error: KafkaError
) -> WriteShareGroupStateResponse:
    return _response(refuse_all(request, error, _API))


def _partition(key: SharePartitionKey, entry: PartitionData) -> messages.WriteShareGroupStateRequest.SharePartition:
    return messages.WriteShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        state_epoch=entry.state_epoch,
        leader_epoch=entry.leader_epoch,
        start_offset=entry.start_offset,
        delivery_complete_count=entry.delivery_complete_count,
        state_batches=[
            messages.StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in entry.state_batches
        ],
    )


def _refusal(partition: int, code: int, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=code, error_message=message)


def _result(result: messages.SharePartitionResult) -> PartitionResult:
    return PartitionResult(partition=result.partition)


def _response(results: Results[PartitionResult]) -> WriteShareGroupStateResponse:
    topics = [WriteStateResult(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
    return WriteShareGroupStateResponse(results=topics)


_API = StateApi(WRITE_SHARE_GROUP_STATE, _partition, _refusal, _result)


serve(
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.CLUSTER_ACTION),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
