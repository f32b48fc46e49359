"""SaslAuthenticate (key 36), versions 0 to 2: a message of the mechanism, and the server's answer.

A failure is answered after connection.failed.authentication.delay.ms, and closes the connection. From version 1 on the
answer says how long the session lasts.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.sasl_authenticate import SaslAuthenticateRequest
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse

ALREADY = "SaslAuthenticate request received after successful authentication"


async def handle(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    if context.sasl is None:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=ALREADY)
    try:
        answer = context.sasl.answer(bytes(request.auth_bytes))
    except KafkaError as error:
        await context.wait_after_failed_authentication()
        return SaslAuthenticateResponse(error_code=error.code, error_message=error.message)
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=answer, session_lifetime_ms=context.sasl.lifetime_ms()
    )


serve(
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    VersionRange(0, 2),
    access=Access(open_to_all="clients authenticate with it"),
    handle=handle,
)
