"""DeleteShareGroupState (key 86), version 0: state of share-partitions ends; see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import StateRequest, ask_share_coordinators, no_fields, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_STATE
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    return await ask_share_coordinators(context, request, _REQUEST)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refuse_all(request, error)


def _partition(key: SharePartitionKey, entry: Message) -> messages.DeleteShareGroupStateRequest.SharePartition:
    return messages.DeleteShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
    )


_REQUEST = StateRequest(DELETE_SHARE_GROUP_STATE, _partition, no_fields)


serve(
    ApiKey.DELETE_SHARE_GROUP_STATE,
    VersionRange(0, 0),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
