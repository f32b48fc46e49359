"""SaslHandshake (key 17), versions 0 and 1: the client chooses a mechanism of its listener.

After version 0 the messages of the mechanism come as frames without a header. On a listener without SASL, and in an
authentication that has begun, it is ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.sasl_handshake import SaslHandshakeRequest
from kshare_wire.generated.responses.sasl_handshake import SaslHandshakeResponse


async def handle(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    if context.sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        context.sasl.choose(request.mechanism, raw=context.version == 0)
    except KafkaError as error:
        if context.sasl.has_failed:
            await context.wait_after_failed_authentication()
        return SaslHandshakeResponse(error_code=error.code, mechanisms=context.sasl.mechanisms)
    return SaslHandshakeResponse(mechanisms=context.sasl.mechanisms)


serve(
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    VersionRange(0, 1),
    access=Access(open_to_all="clients authenticate with it"),
    handle=handle,
)
