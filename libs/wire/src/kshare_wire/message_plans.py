"""The fields of each version of a Kafka message, from a table that is generated from kio's classes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from kshare_wire.generated.message_table import REQUESTS, RESPONSES, STRUCTS, Field

FIXED_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
INT16, INT32 = struct.Struct(">h"), struct.Struct(">i")


class FieldPlan:
    """One field of a struct in one version."""

    __slots__ = ("code", "default", "flexible", "is_array", "kind", "name", "nullable", "struct_type", "tag")

    def __init__(self, field: Field, flexible: bool) -> None:
        name, kind, tag, default, is_array, nullable = field
        self.name = name
        self.kind = kind if isinstance(kind, str) else "struct"
        self.struct_type = _struct(kind) if isinstance(kind, int) else None
        self.tag = tag
        self.default: Any = default
        self.is_array = is_array
        self.nullable = nullable
        self.flexible = flexible
        self.code: str | None = None if is_array else FIXED_CODES.get(self.kind)


class StructPlan:
    """A struct of a message in one version; `flexible`: with compact lengths and tagged fields (KIP-482)."""

    __slots__ = ("fields", "flexible", "name")

    def __init__(self, place: int) -> None:
        self.name, self.flexible, entries = STRUCTS[place]
        self.fields = [FieldPlan(field, self.flexible) for field in entries]


@cache
def _struct(place: int) -> StructPlan:
    return StructPlan(place)


def request_plan(api_key: int, version: int) -> StructPlan:
    return _struct(REQUESTS[api_key][version])


def response_plan(api_key: int, version: int) -> StructPlan:
    return _struct(RESPONSES[api_key][version])


def versions_of_response(api_key: int) -> list[StructPlan]:
    """The plans of a response in all its versions, the oldest first."""
    return [_struct(place) for place in RESPONSES[api_key].values()]


def is_sliced(plan: FieldPlan) -> bool:
    """Whether the field is an array whose elements count for slices: those of fixed size are handled all at once."""
    return plan.is_array and plan.tag is None and (plan.struct_type is not None or plan.kind == "string")


def runs_of_fixed(plans: Sequence[FieldPlan]) -> list[list[FieldPlan]]:
    """Fields grouped for reading and writing: adjacent fields of fixed size together, every other field alone."""
    groups: list[list[FieldPlan]] = []
    for plan in plans:
        if groups and plan.code is not None and groups[-1][-1].code is not None:
            groups[-1].append(plan)
        else:
            groups.append([plan])
    return groups


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of the API uses compact lengths and tagged fields (KIP-482)."""
    return request_plan(api_key, version).flexible
