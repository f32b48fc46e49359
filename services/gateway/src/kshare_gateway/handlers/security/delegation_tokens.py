"""Delegation tokens (keys 38 to 41): rejected as in a Kafka 4.3.1 without `delegation.token.secret.key`.

A request is DELEGATION_TOKEN_REQUEST_NOT_ALLOWED from a client that is not authenticated, else
DELEGATION_TOKEN_AUTH_DISABLED.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.security.principals import ANONYMOUS, USER_TYPE
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_delegation_token import CreateDelegationTokenRequest
from kshare_wire.generated.requests.describe_delegation_token import DescribeDelegationTokenRequest
from kshare_wire.generated.requests.expire_delegation_token import ExpireDelegationTokenRequest
from kshare_wire.generated.requests.renew_delegation_token import RenewDelegationTokenRequest
from kshare_wire.generated.responses.create_delegation_token import CreateDelegationTokenResponse
from kshare_wire.generated.responses.describe_delegation_token import DescribeDelegationTokenResponse
from kshare_wire.generated.responses.expire_delegation_token import ExpireDelegationTokenResponse
from kshare_wire.generated.responses.renew_delegation_token import RenewDelegationTokenResponse

UNKNOWN_TIME = -1
NOTHING_TO_PROTECT = Access(open_to_all="there are no delegation tokens")


def _code(context: RequestContext) -> ErrorCode:
    """Kafka refuses these requests from clients that are not authenticated before it looks for its secret key."""
    is_anonymous = context.principal == ANONYMOUS
    return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if is_anonymous else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def create_delegation_token(
    context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=_code(context),
        principal_type=USER_TYPE,
        principal_name=context.principal.partition(":")[2],
        issue_timestamp_ms=UNKNOWN_TIME,
        expiry_timestamp_ms=UNKNOWN_TIME,
        max_timestamp_ms=UNKNOWN_TIME,
    )


def renew_delegation_token(
    context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=_code(context), expiry_timestamp_ms=UNKNOWN_TIME)


def expire_delegation_token(
    context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=_code(context), expiry_timestamp_ms=UNKNOWN_TIME)


def describe_delegation_token(
    context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=_code(context))


serve(
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    VersionRange(1, 3),
    access=NOTHING_TO_PROTECT,
    answer_now=create_delegation_token,
)
serve(
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    VersionRange(1, 2),
    access=NOTHING_TO_PROTECT,
    answer_now=renew_delegation_token,
)
serve(
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    VersionRange(1, 2),
    access=NOTHING_TO_PROTECT,
    answer_now=expire_delegation_token,
)
serve(
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    VersionRange(1, 3),
    access=NOTHING_TO_PROTECT,
    answer_now=describe_delegation_token,
)
