"""DescribeUserScramCredentials (key 50), version 0: mechanisms and iterations of users, from this gateway's catalog.

No names (or null) ask for all users. A user without credentials is RESOURCE_NOT_FOUND, one that is given twice
DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from collections import Counter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kshare_wire.generated.responses.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    found: dict[str, list[CredentialInfo]] = {}
    count = context.count_elements()
    for entry in context.gateway.view.security.values():
        if entry.key.HasField("scram_user"):
            user = entry.key.scram_user
            credential = CredentialInfo(mechanism=user.mechanism, iterations=entry.value.scram_credential.iterations)
            found.setdefault(user.name, []).append(credential)
        if count.add():
            await count.next_slice()
    names = Counter(user.name for user in request.users or ()) or dict.fromkeys(sorted(found), 1)
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_result(name, times, found.get(name, [])) for name, times in names.items()]
    )


def failed(
    context: RequestContext, request: DescribeUserScramCredentialsRequest, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    results = [
        DescribeUserScramCredentialsResult(user=user.name, error_code=error.code, error_message=error.message)
        for user in request.users or ()
    ]
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=results)


def _result(name: str, times: int, credentials: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    if times == 1 and credentials:
        ordered = sorted(credentials, key=lambda each: each.mechanism)
        return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=ordered)
    if times > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, f"User {name[:300]!r} is named more than once"
    else:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"There is no user {name[:300]!r} with SCRAM credentials"
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)


serve(
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.DESCRIBE),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
)
