"""What the fields of each version of a Kafka message are, out of the classes that kio ships."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cache
from typing import Any

from kio.index import load_request_schema
from kio.serial._introspect import (  # no public way to ask a kio class for its fields' types
    classify_field,
    get_field_tag,
    is_optional,
)

from kshare_core.identifiers import TOPIC_ID_LENGTH

ZERO_ID = bytes(TOPIC_ID_LENGTH)

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
_TIMES = frozenset({"timedelta_i32", "timedelta_i64", "datetime_i64"})
INT16, INT32 = struct.Struct(">h"), struct.Struct(">i")


class FieldPlan:
    """What one field of one version is."""

    __slots__ = ("code", "default", "flexible", "is_array", "kind", "name", "nullable", "struct_type", "tag")

    def __init__(self, field: Field[Any], flexible: bool) -> None:
        shape: Any = classify_field(field)
        self.is_array: bool = shape.is_array
        self.struct_type: Any = shape.type_ if is_dataclass(shape.type_) else None
        self.kind: str = field.metadata.get("kafka_type", "struct")
        self.name = field.name + "_ms" if self.kind in _TIMES else field.name
        self.nullable = is_optional(field) and (self.kind not in FIXED_CODES or self.is_array)
        self.flexible = flexible
        tag = get_field_tag(field)
        self.tag: int | None = None if tag is None else int(tag)
        self.code: str | None = None if self.is_array else FIXED_CODES.get(self.kind)
        self.default = self._default(field)

    def _default(self, field: Field[Any]) -> Any:
        default = None if field.default is MISSING else field.default
        if isinstance(default, timedelta):
            return round(default / timedelta(milliseconds=1))
        if isinstance(default, IntEnum):
            return int(default)
        if default is not None and not is_dataclass(default):
            return default
        if self.is_array:
            return None if self.nullable else ()
        if self.code is not None:
            if self.code == "16s":
                return ZERO_ID
            return -1 if self.kind == "datetime_i64" else False if self.kind == "bool" else 0
        return "" if self.kind == "string" and not self.nullable else None


def plans_of(struct_type: type) -> list[FieldPlan]:
    flexible: bool = struct_type.__flexible__  # type: ignore[attr-defined]
    return [FieldPlan(field, flexible) for field in fields(struct_type)]


def runs_of_fixed(plans: Sequence[FieldPlan]) -> list[list[FieldPlan]]:
    """Neighbouring fields of fixed size together; every other field alone."""
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
    flexible: bool = load_request_schema(api_key, version).__flexible__
    return flexible
