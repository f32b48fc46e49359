"""DeleteGroups (key 42), versions 0 to 2: groups of every type, deleted by the coordinator; each has a result."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_group
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DELETE_GROUPS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_groups import DeleteGroupsRequest
from kshare_wire.generated.responses.delete_groups import DeletableGroupResult, DeleteGroupsResponse

STATE_DELETION_MS = 30_000
"""Extra timeout of the call: the state of share groups is deleted at share coordinators."""


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    with no_answer_as_kafka_says():
        results = await context.gateway.catalog.coordinators.call_owners(
            list(dict.fromkeys(request.groups_names)),
            DELETE_GROUPS,
            request_of=lambda group_ids: coordinator_pb2.DeleteGroupsRequest(group_ids=group_ids),
            results_of=lambda answer: answer.results,
            refusal_of=_refused,
            timeout_ms=CALL_TIMEOUT_MS + STATE_DELETION_MS,
        )
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=result.group_id, error_code=result.error_code) for result in results]
    )


def failed(context: RequestContext, request: DeleteGroupsRequest, error: KafkaError) -> DeleteGroupsResponse:
    group_ids = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error.code) for group_id in group_ids]
    )


def _refused(group_id: str, code: ErrorCode, message: str) -> coordinator_pb2.DeleteGroupsResponse.Result:
    return coordinator_pb2.DeleteGroupsResponse.Result(group_id=group_id, error_code=code, error_message=message)


serve(
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    VersionRange(0, 2),
    access=Access(each=each_group(Operation.DELETE)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("groups_names",), "results"),
)
