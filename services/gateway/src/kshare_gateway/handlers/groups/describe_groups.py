"""DescribeGroups (key 15), versions 0 to 6: groups of the classic protocol, from the coordinator.

A group that does not exist, or is of another type, is GROUP_ID_NOT_FOUND from version 6 on; before, it is a group
without members in state Dead. Authorized operations are given from version 3 on where they are asked for.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access, each_group
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DESCRIBE_GROUPS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_groups import DescribeGroupsRequest
from kshare_wire.generated.responses.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse

CoordinatorGroup = coordinator_pb2.DescribeGroupsResponse.DescribedGroup

FIRST_VERSION_WITH_NOT_FOUND = 6
FIRST_VERSION_WITH_OPERATIONS = 3


async def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    with no_answer_as_kafka_says():
        groups = await context.gateway.catalog.coordinators.call_owners(
            request.groups,
            DESCRIBE_GROUPS,
            request_of=lambda group_ids: coordinator_pb2.DescribeGroupsRequest(group_ids=group_ids),
            results_of=lambda answer: answer.groups,
            refusal_of=_refused,
            timeout_ms=CALL_TIMEOUT_MS,
        )
    is_asked = context.version >= FIRST_VERSION_WITH_OPERATIONS and request.include_authorized_operations
    return DescribeGroupsResponse(groups=[_group(context, group, with_operations=is_asked) for group in groups])


def failed(context: RequestContext, request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=error.code) for group_id in request.groups]
    )


def _refused(group_id: str, code: ErrorCode, message: str) -> CoordinatorGroup:
    return CoordinatorGroup(group_id=group_id, error_code=code, error_message=message)


def _group(context: RequestContext, group: CoordinatorGroup, *, with_operations: bool) -> DescribedGroup:
    is_missing = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    is_silent = is_missing and context.version < FIRST_VERSION_WITH_NOT_FOUND
    code = ErrorCode.NONE if is_silent else group.error_code
    is_known = with_operations and code == ErrorCode.NONE
    return DescribedGroup(
        error_code=code,
        error_message=group.error_message or None,
        group_id=group.group_id,
        group_state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=[_member(member) for member in group.members],
        authorized_operations=authorized_operations.of_group(context, group.group_id, is_asked=is_known),
    )


def _member(member: coordinator_pb2.DescribeGroupsResponse.Member) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


serve(
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    VersionRange(0, 6),
    access=Access(each=each_group(Operation.DESCRIBE)),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("groups",), "groups", described=str),
)
