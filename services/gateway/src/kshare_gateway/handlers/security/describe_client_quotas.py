"""DescribeClientQuotas (key 48), versions 0 and 1: there are no quotas, so none match, whatever the filter.

A filter that Kafka refuses is refused as there (ClientQuotasImage.describe of 4.3.1): an empty or repeated entity type,
an unknown way to match, a name where none belongs, and ip beside user or client-id are INVALID_REQUEST; a type that is
none of the three is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from kshare_wire.generated.responses.describe_client_quotas import DescribeClientQuotasResponse

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = range(3)


async def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    types: list[str] = []
    for component in request.components:
        _check(component, types)
        types.append(component.entity_type)
    if IP in types and len(types) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A filter by ip cannot be combined with user or client-id")
    return DescribeClientQuotasResponse(entries=[])


def _check(component: ComponentData, before: list[str]) -> None:
    entity_type = component.entity_type
    if not entity_type or entity_type in before:
        text = f"Entity type {entity_type[:300]!r} is empty or given twice; allowed once each are user, client-id, ip"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if entity_type not in (USER, CLIENT_ID, IP):
        text = f"Entity type {entity_type[:300]!r} is not known; allowed are user, client-id and ip"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
    if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        text = f"Match type {component.match_type} is not known; allowed are 0 (exact), 1 (default) and 2 (any)"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if component.match_type != EXACT and component.match is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A name is only allowed with an exact match")


serve(DescribeClientQuotasRequest, DescribeClientQuotasResponse, VersionRange(0, 1), handle=handle)
