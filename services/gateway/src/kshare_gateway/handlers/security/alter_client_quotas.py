"""AlterClientQuotas (key 49), versions 0 and 1: decided by the coordinator, answered when this gateway has the quotas.

An entity that Kafka refuses is refused as there (ClientQuotaControlManager of 4.3.1): without parts, with an unknown or
empty one, or an address beside a user or client id are INVALID_REQUEST; so is an address that is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_rpc.generated.methods import ALTER_CLIENT_QUOTAS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_client_quotas import AlterClientQuotasRequest, EntityData
from kshare_wire.generated.requests.alter_client_quotas import EntryData as WantedEntry
from kshare_wire.generated.responses.alter_client_quotas import AlterClientQuotasResponse, EntryData
from kshare_wire.generated.responses.alter_client_quotas import EntityData as AnsweredEntity

FIELDS = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""The field of QuotaEntity for each entity type."""


async def handle(context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """An entity that is given several times is altered as the last entry says, and has one result."""
    unique = {tuple(sorted(map(_identity, entry.entity))): entry for entry in request.entries}
    results: dict[int, EntryData] = {}
    wanted = pb.AlterClientQuotasRequest(validate_only=request.validate_only)
    places: list[int] = []
    entries = list(unique.values())
    for place, entry in enumerate(entries):
        try:
            ops = [
                pb.AlterClientQuotasRequest.Entry.Op(key=op.key, value=None if op.remove else op.value)
                for op in entry.ops
            ]
            wanted.entries.add(entity=quota_entity(entry.entity), ops=ops)
            places.append(place)
        except KafkaError as error:
            results[place] = _result(entry, error.code, error.message)
    if places:
        answer = await change_catalog(context.gateway, ALTER_CLIENT_QUOTAS, wanted)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
        await context.gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
        for place, result in zip(places, answer.results, strict=True):
            results[place] = _result(entries[place], result.error_code, result.error_message)
    return AlterClientQuotasResponse(entries=[results[place] for place in range(len(entries))])


def _identity(part: EntityData) -> tuple[str, str]:
    return part.entity_type, repr(part.entity_name)


def failed(context: RequestContext, request: AlterClientQuotasRequest, error: KafkaError) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_result(entry, error.code, error.message) for entry in request.entries])


def quota_entity(parts: Sequence[EntityData]) -> pb.QuotaEntity:
    """The entity of its parts; a null name is the default of its type. KafkaError."""
    found = pb.QuotaEntity()
    for part in parts:
        field = FIELDS.get(part.entity_type)
        if field is None or found.HasField(field):  # type: ignore[arg-type]
            text = f"Entity type {part.entity_type[:300]!r} is unknown or given twice; allowed are {', '.join(FIELDS)}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if part.entity_name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The name of the {part.entity_type} is empty")
        setattr(found, field, part.entity_name or "")
    if not parts or (found.HasField("ip") and len(parts) > 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "An entity is a user, a client-id, both, or an ip alone")
    if found.ip:
        _check_address(found.ip)
    return found


def _check_address(text: str) -> None:
    try:
        ip_address(text)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text[:300]!r} is not an IP address") from None


def _result(entry: WantedEntry, code: int, message: str) -> EntryData:
    entity = [AnsweredEntity(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    return EntryData(error_code=code, error_message=message or None, entity=entity)


serve(
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.ALTER_CONFIGS),
    handle=handle,
    failed=failed,
)
