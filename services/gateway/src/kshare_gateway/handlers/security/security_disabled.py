"""ACLs (keys 29 to 31) and delegation tokens (38 to 41): rejected, without an authorizer and authentication.

As in Kafka 4.3.1 without authorizer.class.name on a plain listener: each ACL request is SECURITY_DISABLED (creations
and filters one by one), each request for delegation tokens DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_acls import CreateAclsRequest
from kshare_wire.generated.requests.create_delegation_token import CreateDelegationTokenRequest
from kshare_wire.generated.requests.delete_acls import DeleteAclsRequest
from kshare_wire.generated.requests.describe_acls import DescribeAclsRequest
from kshare_wire.generated.requests.describe_delegation_token import DescribeDelegationTokenRequest
from kshare_wire.generated.requests.expire_delegation_token import ExpireDelegationTokenRequest
from kshare_wire.generated.requests.renew_delegation_token import RenewDelegationTokenRequest
from kshare_wire.generated.responses.create_acls import AclCreationResult, CreateAclsResponse
from kshare_wire.generated.responses.create_delegation_token import CreateDelegationTokenResponse
from kshare_wire.generated.responses.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from kshare_wire.generated.responses.describe_acls import DescribeAclsResponse
from kshare_wire.generated.responses.describe_delegation_token import DescribeDelegationTokenResponse
from kshare_wire.generated.responses.expire_delegation_token import ExpireDelegationTokenResponse
from kshare_wire.generated.responses.renew_delegation_token import RenewDelegationTokenResponse

NO_AUTHORIZER = "There is no authorizer here, so there are no ACLs"
UNKNOWN_TIME = -1


def describe_acls(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def delete_acls(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def create_delegation_token(
    context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type="User",
        principal_name="ANONYMOUS",
        issue_timestamp_ms=UNKNOWN_TIME,
        expiry_timestamp_ms=UNKNOWN_TIME,
        max_timestamp_ms=UNKNOWN_TIME,
    )


def renew_delegation_token(
    context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=UNKNOWN_TIME
    )


def expire_delegation_token(
    context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=UNKNOWN_TIME
    )


def describe_delegation_token(
    context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


serve(DescribeAclsRequest, DescribeAclsResponse, VersionRange(1, 3), answer_now=describe_acls)
serve(CreateAclsRequest, CreateAclsResponse, VersionRange(1, 3), answer_now=create_acls)
serve(DeleteAclsRequest, DeleteAclsResponse, VersionRange(1, 3), answer_now=delete_acls)
serve(
    CreateDelegationTokenRequest, CreateDelegationTokenResponse, VersionRange(1, 3), answer_now=create_delegation_token
)
serve(RenewDelegationTokenRequest, RenewDelegationTokenResponse, VersionRange(1, 2), answer_now=renew_delegation_token)
serve(
    ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, VersionRange(1, 2), answer_now=expire_delegation_token
)
serve(
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    VersionRange(1, 3),
    answer_now=describe_delegation_token,
)
