"""InitializeShareGroupState (key 83), version 0: state of share-partitions begins; see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.groups.id_limit import group_id_problem
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import StateRequest, ask_share_coordinators, no_fields, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import INITIALIZE_SHARE_GROUP_STATE
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    problem = group_id_problem(context.gateway.configs, request.group_id)
    if problem is not None:  # the coordinator, which initialises state itself, makes no group with such an id
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return await ask_share_coordinators(context, request, _REQUEST)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refuse_all(request, error)


def _partition(key: SharePartitionKey, entry: Message) -> messages.InitializeShareGroupStateRequest.SharePartition:
    return messages.InitializeShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        state_epoch=entry.state_epoch,
        start_offset=entry.start_offset,
    )


_REQUEST = StateRequest(INITIALIZE_SHARE_GROUP_STATE, _partition, no_fields)


serve(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    VersionRange(0, 0),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
