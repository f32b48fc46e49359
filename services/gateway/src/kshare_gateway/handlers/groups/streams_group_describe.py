"""StreamsGroupDescribe (key 89), version 0: kshare has no streams groups (KIP-1071), so no id is one of them."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access, each_group
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.streams_group_describe import StreamsGroupDescribeRequest
from kshare_wire.generated.responses.streams_group_describe import DescribedGroup, StreamsGroupDescribeResponse


def answer_now(context: RequestContext, request: StreamsGroupDescribeRequest) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(groups=[_not_found(group_id) for group_id in request.group_ids])


def failed(
    context: RequestContext, request: StreamsGroupDescribeRequest, error: KafkaError
) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(
        groups=[
            DescribedGroup(
                error_code=error.code,
                error_message=error.message,
                group_id=group_id,
                group_epoch=0,
                assignment_epoch=0,
                authorized_operations=authorized_operations.UNKNOWN,
            )
            for group_id in request.group_ids
        ]
    )


def _not_found(group_id: str) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"There is no streams group {group_id[:300]!r}",
        group_id=group_id,
        group_epoch=0,
        assignment_epoch=0,
        authorized_operations=authorized_operations.UNKNOWN,
    )


serve(
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    VersionRange(0, 0),
    access=Access(each=each_group(Operation.DESCRIBE)),
    answer_now=answer_now,
    failed=failed,
    elements=ElementArrays(("group_ids",), "groups", described=str),
)
