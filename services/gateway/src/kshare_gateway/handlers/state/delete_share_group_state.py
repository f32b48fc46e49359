"""DeleteShareGroupState (key 86), version 0: state of share-partitions ends; see `state.requests`."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import Results, StateApi, ask_share_coordinators, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_STATE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_share_group_state import DeleteShareGroupStateRequest, PartitionData
from kshare_wire.generated.responses.delete_share_group_state import (
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)


async def handle(context: RequestContext, request: DeleteShareGroupStateRequest) -> DeleteShareGroupStateResponse:
    return _response(await ask_share_coordinators(context, request, _API))


def failed(
    context: RequestContext, request: DeleteShareGroupStateRequest, error: KafkaError
) -> DeleteShareGroupStateResponse:
    return _response(refuse_all(request, error, _API))


def _partition(key: SharePartitionKey, entry: PartitionData) -> messages.DeleteShareGroupStateRequest.SharePartition:
    return messages.DeleteShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
    )


def _refusal(partition: int, code: int, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=code, error_message=message)


def _result(result: messages.SharePartitionResult) -> PartitionResult:
    return PartitionResult(partition=result.partition)


def _response(results: Results[PartitionResult]) -> DeleteShareGroupStateResponse:
    topics = [DeleteStateResult(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
    return DeleteShareGroupStateResponse(results=topics)


_API = StateApi(DELETE_SHARE_GROUP_STATE, _partition, _refusal, _result)


serve(
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.CLUSTER_ACTION),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
