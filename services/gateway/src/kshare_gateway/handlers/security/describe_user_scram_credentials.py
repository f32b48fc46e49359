"""DescribeUserScramCredentials (key 50), version 0: there are no users, as in a Kafka where none was made.

No names (or null) ask for all users. A name is RESOURCE_NOT_FOUND, one that is given twice DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from collections import Counter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


def answer_now(context: RequestContext, request: Message) -> Body:
    names = Counter(user.name for user in request.users or ())
    return {"results": [_result(name, count) for name, count in names.items()]}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": error.message, "results": []}


def _result(name: str, count: int) -> Body:
    if count > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, f"User {name[:300]!r} is named more than once"
    else:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"There is no user {name[:300]!r} with SCRAM credentials"
    return {"user": name, "error_code": code, "error_message": text}


serve(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, VersionRange(0, 0), answer_now=answer_now, failed=failed)
