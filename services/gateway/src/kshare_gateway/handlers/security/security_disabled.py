"""ACLs (keys 29 to 31) and delegation tokens (38 to 41): rejected, without an authorizer and authentication.

As in Kafka 4.3.1 without authorizer.class.name on a plain listener: each ACL request is SECURITY_DISABLED (creations
and filters one by one), each request for delegation tokens DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

_NO_AUTHORIZER: dict[str, object] = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "There is no authorizer here, so there are no ACLs",
}
UNKNOWN_TIME = -1


def describe_acls(context: RequestContext, request: Message) -> Body:
    return _NO_AUTHORIZER


def create_acls(context: RequestContext, request: Message) -> Body:
    return {"results": [_NO_AUTHORIZER for _ in request.creations]}


def delete_acls(context: RequestContext, request: Message) -> Body:
    return {"filter_results": [_NO_AUTHORIZER for _ in request.filters]}


def create_delegation_token(context: RequestContext, request: Message) -> Body:
    return {
        "error_code": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "issue_timestamp_ms": UNKNOWN_TIME,
        "expiry_timestamp_ms": UNKNOWN_TIME,
        "max_timestamp_ms": UNKNOWN_TIME,
        "token_id": "",
        "hmac": b"",
    }


def alter_delegation_token(context: RequestContext, request: Message) -> Body:
    """RenewDelegationToken and ExpireDelegationToken."""
    return {"error_code": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "expiry_timestamp_ms": UNKNOWN_TIME}


def describe_delegation_token(context: RequestContext, request: Message) -> Body:
    return {"error_code": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "tokens": []}


serve(ApiKey.DESCRIBE_ACLS, VersionRange(1, 3), answer_now=describe_acls)
serve(ApiKey.CREATE_ACLS, VersionRange(1, 3), answer_now=create_acls)
serve(ApiKey.DELETE_ACLS, VersionRange(1, 3), answer_now=delete_acls)
serve(ApiKey.CREATE_DELEGATION_TOKEN, VersionRange(1, 3), answer_now=create_delegation_token)
serve(ApiKey.RENEW_DELEGATION_TOKEN, VersionRange(1, 2), answer_now=alter_delegation_token)
serve(ApiKey.EXPIRE_DELEGATION_TOKEN, VersionRange(1, 2), answer_now=alter_delegation_token)
serve(ApiKey.DESCRIBE_DELEGATION_TOKEN, VersionRange(1, 3), answer_now=describe_delegation_token)
