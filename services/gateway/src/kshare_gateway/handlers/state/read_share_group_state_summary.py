"""ReadShareGroupStateSummary (key 87), versions 0 and 1 (DeliveryCompleteCount); see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_gateway.state.requests import Results, StateApi, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.read_share_group_state_summary import (
    PartitionData,
    ReadShareGroupStateSummaryRequest,
)
from kshare_wire.generated.responses.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)


async def handle(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    return _response(await ask_share_coordinators(context, request, _API))


def failed(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest, error: KafkaError
) -> ReadShareGroupStateSummaryResponse:
    return _response(refuse_all(request, error, _API))


def _partition(
    key: SharePartitionKey, entry: PartitionData
) -> messages.ReadShareGroupStateSummaryRequest.SharePartition:
    return messages.ReadShareGroupStateSummaryRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=entry.leader_epoch,
    )


def _refusal(partition: int, code: int, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=code, error_message=message)


def _result(result: messages.ReadShareGroupStateSummaryResponse.Result) -> PartitionResult:
    return PartitionResult(
        partition=result.partition,
        state_epoch=result.state_epoch,
        leader_epoch=result.leader_epoch,
        start_offset=result.start_offset,
        delivery_complete_count=result.delivery_complete_count,
    )


def _response(results: Results[PartitionResult]) -> ReadShareGroupStateSummaryResponse:
    topics = [ReadStateSummaryResult(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
    return ReadShareGroupStateSummaryResponse(results=topics)


_API = StateApi(READ_SHARE_GROUP_STATE_SUMMARY, _partition, _refusal, _result, reads=True)


serve(
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.CLUSTER_ACTION),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
