"""InitializeShareGroupState (key 83), version 0: state of share-partitions begins; see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.security.acls import Operation
from kshare_gateway.groups.id_limit import group_id_problem
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import Results, StateApi, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import INITIALIZE_SHARE_GROUP_STATE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.initialize_share_group_state import InitializeShareGroupStateRequest, PartitionData
from kshare_wire.generated.responses.initialize_share_group_state import (
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionResult,
)


async def handle(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    problem = group_id_problem(context.gateway.configs, request.group_id)
    if problem is not None:  # the coordinator, which initialises state itself, makes no group with such an id
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return _response(await ask_share_coordinators(context, request, _API))


def failed(
    context: RequestContext, request: InitializeShareGroupStateRequest, error: KafkaError
) -> InitializeShareGroupStateResponse:
    return _response(refuse_all(request, error, _API))


def _partition(
    key: SharePartitionKey, entry: PartitionData
) -> messages.InitializeShareGroupStateRequest.SharePartition:
    return messages.InitializeShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        state_epoch=entry.state_epoch,
        start_offset=entry.start_offset,
    )


def _refusal(partition: int, code: int, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=code, error_message=message)


def _result(result: messages.SharePartitionResult) -> PartitionResult:
    return PartitionResult(partition=result.partition)


def _response(results: Results[PartitionResult]) -> InitializeShareGroupStateResponse:
    topics = [InitializeStateResult(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
    return InitializeShareGroupStateResponse(results=topics)


_API = StateApi(INITIALIZE_SHARE_GROUP_STATE, _partition, _refusal, _result)


serve(
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.CLUSTER_ACTION),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
