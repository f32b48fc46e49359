"""ACLs (keys 29 to 31), versions 1 to 3: told from this gateway's catalog, created and deleted by the coordinator.

Without `authorizer.class.name` each request is SECURITY_DISABLED (creations and filters one by one). A number that is
none of Kafka's enums closes the connection, as in Kafka, whose parser refuses it. Changes are answered when this
gateway has them; the other gateways get them with their next catalog view.
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import AclFilter, Operation, is_known
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import ConnectionMustClose, RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, error_response, serve
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_rpc.generated.methods import ALTER_ACLS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_acls import AclCreation, CreateAclsRequest
from kshare_wire.generated.requests.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kshare_wire.generated.requests.describe_acls import DescribeAclsRequest
from kshare_wire.generated.responses.create_acls import AclCreationResult, CreateAclsResponse
from kshare_wire.generated.responses.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from kshare_wire.generated.responses.describe_acls import AclDescription, DescribeAclsResource, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured."


async def describe(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if not is_known(wanted):
        raise ConnectionMustClose(f"DescribeAcls has a number that is not known: {wanted}")
    authorizer = context.gateway.authorizer
    if authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    resources: dict[tuple[int, str, int], list[AclDescription]] = {}
    count = context.count_elements()
    for acl in authorizer.acls():
        if wanted.matches(acl):
            resources.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(
                AclDescription(
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission_type
                )
            )
        if count.add():
            await count.next_slice()
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
            for (kind, name, pattern), acls in resources.items()
        ],
    )


async def create(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    creations = [_acl(creation) for creation in request.creations]
    for acl in creations:
        if not is_known(acl):
            raise ConnectionMustClose("CreateAcls has a number that is not known")
    if context.gateway.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    results = await _altered(context, pb.AlterAclsRequest(creations=creations))
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=result.error_code, error_message=result.error_message or None)
            for result in results
        ]
    )


def not_created(context: RequestContext, request: CreateAclsRequest, error: KafkaError) -> CreateAclsResponse:
    result = AclCreationResult(error_code=error.code, error_message=error.message)
    return CreateAclsResponse(results=[result] * len(request.creations))


async def delete(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    filters = [_filter(each) for each in request.filters]
    if context.gateway.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    results = await _altered(context, pb.AlterAclsRequest(filters=filters))
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(
                error_code=result.error_code,
                error_message=result.error_message or None,
                matching_acls=[_deleted(acl) for acl in result.deleted],
            )
            for result in results
        ]
    )


def not_deleted(context: RequestContext, request: DeleteAclsRequest, error: KafkaError) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(error_code=error.code, error_message=error.message, matching_acls=[])
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


async def _altered(context: RequestContext, wanted: pb.AlterAclsRequest) -> Sequence[pb.AlterAclsResponse.Result]:
    """The coordinator's results, once this gateway has the changes."""
    answer = await change_catalog(context.gateway, ALTER_ACLS, wanted)
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
    await context.gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
    return answer.results


def _acl(creation: AclCreation) -> pb.Acl:
    return pb.Acl(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _filter(each: DeleteAclsFilter) -> pb.AclFilter:
    wanted = AclFilter(
        each.resource_type_filter,
        each.resource_name_filter,
        each.pattern_type_filter,
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )
    if not is_known(wanted):
        raise ConnectionMustClose("DeleteAcls has a number that is not known")
    return pb.AclFilter(**wanted._asdict())


def _deleted(acl: pb.Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


serve(
    DescribeAclsRequest,
    DescribeAclsResponse,
    VersionRange(1, 3),
    access=on_cluster(Operation.DESCRIBE),
    handle=describe,
    failed=error_response(DescribeAclsResponse),
    size=ResponseSize.LONG,
)
serve(
    CreateAclsRequest,
    CreateAclsResponse,
    VersionRange(1, 3),
    access=on_cluster(Operation.ALTER),
    handle=create,
    failed=not_created,
)
serve(
    DeleteAclsRequest,
    DeleteAclsResponse,
    VersionRange(1, 3),
    access=on_cluster(Operation.ALTER),
    handle=delete,
    failed=not_deleted,
)
