"""DescribeUserScramCredentials (key 50), version 0: there are no users, as in a Kafka where none was made.

No names (or null) ask for all users. A name is RESOURCE_NOT_FOUND, one that is given twice DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from collections import Counter

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import error_response, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kshare_wire.generated.responses.describe_user_scram_credentials import (
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def answer_now(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    names = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(results=[_result(name, count) for name, count in names.items()])


def _result(name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, f"User {name[:300]!r} is named more than once"
    else:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"There is no user {name[:300]!r} with SCRAM credentials"
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)


serve(
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    VersionRange(0, 0),
    answer_now=answer_now,
    failed=error_response(DescribeUserScramCredentialsResponse),
)
