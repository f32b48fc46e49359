"""DescribeClientQuotas (key 48), versions 0 and 1: the quotas of entities that match a filter, from the catalog.

A filter that Kafka refuses is refused as there (ClientQuotasImage.describe of 4.3.1): an empty or repeated entity type,
an unknown way to match, a name where none belongs, and ip beside user or client-id are INVALID_REQUEST; a type that is
none of the three is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.handlers.security.alter_client_quotas import FIELDS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1.security_pb2 import QuotaEntity
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from kshare_wire.generated.responses.describe_client_quotas import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = range(3)


async def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    types: list[str] = []
    for component in request.components:
        _check(component, types)
        types.append(component.entity_type)
    if IP in types and len(types) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A filter by ip cannot be combined with user or client-id")
    entries = []
    count = context.count_elements()
    for row in context.gateway.view.security.values():
        if row.key.HasField("quota_entity"):
            parts = _parts(row.key.quota_entity)
            if _matches(parts, request):
                entries.append(_entry(parts, row.value.client_quotas.values))
        if count.add():
            await count.next_slice()
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _parts(entity: QuotaEntity) -> dict[str, str]:
    """The names of an entity by their types; an empty one is the default."""
    return {kind: getattr(entity, field) for kind, field in FIELDS.items() if entity.HasField(field)}  # type: ignore[arg-type]


def _matches(parts: Mapping[str, str], request: DescribeClientQuotasRequest) -> bool:
    if request.strict and len(parts) > len(request.components):
        return False
    return all(
        component.entity_type in parts and _is_meant(component, parts[component.entity_type])
        for component in request.components
    )


def _is_meant(component: ComponentData, name: str) -> bool:
    if component.match_type == EXACT:
        return name != "" and name == component.match
    return component.match_type == SPECIFIED or name == ""


def _entry(parts: Mapping[str, str], values: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name or None) for kind, name in parts.items()],
        values=[ValueData(key=key, value=value) for key, value in sorted(values.items())],
    )


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
    if component.match_type == EXACT and component.match is None:
        text = f"An exact match of {entity_type} needs a name; match type 1 is for the default"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


serve(
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.DESCRIBE_CONFIGS),
    handle=handle,
    size=ResponseSize.LONG,
)
