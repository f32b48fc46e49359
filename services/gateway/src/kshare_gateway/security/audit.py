"""The audit log: who did which administrative operation, from where, with which outcome, as lines of JSON.

The lines are those of the logger "kshare.audit", whatever the format of other logs is. A line names resources and the
configs that were changed, never a value, since a value may be a secret. Each operation that may have changed something
has a line. One that changed nothing, and a denied operation of any API, has a line within a limit (`bounded_lines`), so
that clients whose requests fail cannot fill a disk; a later line says how many were left out. Denials of what clients
repeat all day (Read, Write, Describe) have a limit of their own, so that they do not hide the others. As in Kafka
(logIfDenied), a check that only filters an answer, or chooses between two permissions, has no line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, ResourceType
from kshare_core.security.audit_log import TEXT_LIMIT, write_audit_line
from kshare_core.security.bounded_lines import BoundedLines
from kshare_wire.error_codes import error_codes
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import Request, Response, Struct

if TYPE_CHECKING:
    from kshare_gateway.request_context import RequestContext

AUDITED = frozenset(
    {
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_ACLS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_ACLS,
        ApiKey.DELETE_GROUPS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.DELETE_TOPICS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.OFFSET_DELETE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""The APIs that change the cluster for others than their client."""
OF_CLIENTS = frozenset({Operation.READ, Operation.WRITE, Operation.DESCRIBE})
"""What producers and consumers need, and ask for again and again where they lack it."""
RESOURCES_LIMIT = 100
"""Resources in a line; the line says how many there were."""
NAMING = (
    *("name", "topic", "topic_name", "topic_id", "group_id", "resource_type", "resource_name"),
    *("resource_pattern_type", "principal", "host", "operation", "permission_type", "mechanism", "count"),
    *("producer_id", "transaction_result"),
    *("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter"),
)
"""The fields of a request's elements that a line has; none of them is a value of a config or a credential."""


class Audit:
    """The audit log of one gateway; `now_s` returns seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._denials = BoundedLines(now_s)
        self._denials_of_clients = BoundedLines(now_s)
        self._failures = BoundedLines(now_s)

    def operation(self, context: RequestContext, api_key: int, request: Request[Any], response: Response) -> None:
        """Writes the line of an administrative operation; nothing for other APIs.

        A failed one is left out if it changed nothing, and there were too many of those within this second.
        """
        if api_key not in AUDITED:
            return
        found = list(_resources(request))
        codes = Counter(_code_name(code) for code in error_codes(response))
        left_out: int | None = 0
        if codes and _changed_nothing(response):
            left_out = self._failures.take()
            if left_out is None:
                return
        _write(
            context,
            "operation",
            api=ApiKey(api_key).api_name,
            resources=found[:RESOURCES_LIMIT],
            resource_count=len(found),
            outcome="failed" if codes else "succeeded",
            error_codes=dict(codes),
            **({"left_out_before": left_out} if left_out else {}),
        )

    def denial(self, context: RequestContext, operation: Operation, kind: ResourceType, name: str) -> None:
        """Writes the line of a denied operation, unless there were too many within this second."""
        denials = self._denials_of_clients if operation in OF_CLIENTS else self._denials
        left_out = denials.take()
        if left_out is None:
            return
        _write(
            context,
            "denied",
            operation=operation.name,
            resource_type=kind.name,
            resource_name=name[:TEXT_LIMIT],
            left_out_before=left_out,
        )


def _changed_nothing(result: Struct) -> bool:
    """Whether a response, or a part of one, has an error for all that was asked."""
    if getattr(result, "error_code", 0):
        return True
    values = (getattr(result, field) for field in result.__slots__)
    parts = [part for value in values if isinstance(value, list) for part in value if isinstance(part, Struct)]
    return bool(parts) and all(map(_changed_nothing, parts))


def _write(context: RequestContext, event: str, **fields: Any) -> None:
    who = {
        "principal": context.principal,
        "client_host": context.client_host[1:],
        "listener": context.listener,
        "client_id": (context.client_id or "")[:TEXT_LIMIT],
        "node_id": context.gateway.node_id,
    }
    write_audit_line(event, {**who, **fields})


def _resources(request: Request[Any]) -> Iterable[dict[str, Any]]:
    """The resources that a request names: those of its arrays, or its group."""
    whole = _naming(request)
    has_elements = False
    for field in request.__slots__:
        value = getattr(request, field)
        for element in value if isinstance(value, list | tuple) else ():
            has_elements = True
            found: dict[str, Any] = {"name": str(element)[:TEXT_LIMIT]}
            if isinstance(element, Struct):
                found = _naming(element)
            entity = getattr(element, "entity", None)
            if entity:
                found["entity"] = {part.entity_type[:TEXT_LIMIT]: part.entity_name for part in entity[:3]}
            configs = getattr(element, "configs", None)
            if configs:
                found["configs"] = [config.name[:TEXT_LIMIT] for config in configs[:RESOURCES_LIMIT]]
            topics = getattr(element, "topics", None)
            if topics:
                found["topics"] = [topic.name[:TEXT_LIMIT] for topic in topics[:RESOURCES_LIMIT]]
            yield {**whole, **found}
    if whole and not has_elements:
        yield whole


def _naming(struct: Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in NAMING:
        value = getattr(struct, name, None)
        if isinstance(value, bytes):
            value = value.hex() if any(value) else None
        if isinstance(value, str) and value:
            found[name] = value[:TEXT_LIMIT]
        elif isinstance(value, int):
            found[name] = int(value)
    return found


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
