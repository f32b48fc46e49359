"""ReadShareGroupStateSummary (key 87), versions 0 and 1 (DeliveryCompleteCount); see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_gateway.state.requests import StateRequest, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    return await ask_share_coordinators(context, request, _REQUEST)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refuse_all(request, error)


def _partition(key: SharePartitionKey, entry: Message) -> messages.ReadShareGroupStateSummaryRequest.SharePartition:
    return messages.ReadShareGroupStateSummaryRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=entry.leader_epoch,
    )


def _result(result: messages.ReadShareGroupStateSummaryResponse.Result) -> Body:
    return {
        "state_epoch": result.state_epoch,
        "leader_epoch": result.leader_epoch,
        "start_offset": result.start_offset,
        "delivery_complete_count": result.delivery_complete_count,
    }


_REQUEST = StateRequest(READ_SHARE_GROUP_STATE_SUMMARY, _partition, _result)


serve(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    VersionRange(0, 1),
    handle=handle,
    failed=failed,
    response=ResponseSize.LONG,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
