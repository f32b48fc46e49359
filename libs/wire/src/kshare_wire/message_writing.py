"""The compiler of writers for one version of a response; `messages` describes their input."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kshare_wire.message_plans import (
    FIXED_CODES,
    INT16,
    INT32,
    FieldPlan,
    StructPlan,
    field_defaults,
    is_flexible,
    runs_of_fixed,
)
from kshare_wire.message_reading import MAXIMUM_STRING_LENGTH

Buffer = bytes | bytearray | memoryview
Body = Mapping[str, Any]
"""A response as nested dicts; see `messages`."""


class EncodedArray:
    """An array of a response that is encoded already, of `length` elements; `data` is shared, never copied.

    `error_codes` are those other than NONE in its elements.
    """

    __slots__ = ("data", "error_codes", "length")

    def __init__(self, length: int, data: bytes, error_codes: Sequence[int] = ()) -> None:
        self.length = length
        self.data = data
        self.error_codes = error_codes

    def __len__(self) -> int:
        return self.length


class Output:
    """The buffers of a response while it is written: `buffer` grows; record bytes are put between buffers uncopied."""

    __slots__ = ("buffer", "elements_in_slice", "parts")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.parts: list[Buffer] = []
        self.elements_in_slice = 0

    def splice(self, pieces: Sequence[Buffer]) -> None:
        self.parts.append(self.buffer)
        self.parts.extend(pieces)
        self.buffer = bytearray()

    def unsigned_varint(self, value: int) -> None:
        buffer = self.buffer
        while value > 0x7F:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)


_Write = Callable[[Output, Any], None]


def length_writer(flexible: bool, legacy: struct.Struct) -> Callable[[Output, int], None]:
    if not flexible:

        def write_legacy(target: Output, length: int) -> None:
            target.buffer += legacy.pack(length)

        return write_legacy

    def write(target: Output, length: int) -> None:
        if length < 0x7F:
            target.buffer.append(length + 1)
        else:
            target.unsigned_varint(length + 1)

    return write


def _text_writer(flexible: bool) -> _Write:
    write_length = length_writer(flexible, INT16)

    def write(target: Output, value: str | None) -> None:
        if value is None:
            write_length(target, -1)
            return
        data = value.encode()[:MAXIMUM_STRING_LENGTH]
        size = len(data)
        if flexible and size < 0x7F:
            target.buffer.append(size + 1)
        else:
            write_length(target, size)
        target.buffer += data

    return write


def _records_writer(flexible: bool) -> _Write:
    write_length = length_writer(flexible, INT32)

    def write(target: Output, value: Sequence[Buffer] | None) -> None:
        if value is None:
            write_length(target, -1)
            return
        write_length(target, sum(map(len, value)))
        if value:
            target.splice(value)

    return write


def _bytes_writer(flexible: bool) -> _Write:
    """A writer of small byte fields other than records, which are copied."""
    write_length = length_writer(flexible, INT32)

    def write(target: Output, value: bytes | None) -> None:
        write_length(target, -1 if value is None else len(value))
        target.buffer += value or b""

    return write


def _fixed_writer(kind: str) -> _Write:
    pack = struct.Struct(">" + FIXED_CODES[kind]).pack

    def write(target: Output, value: Any) -> None:
        target.buffer += pack(value)

    return write


def value_writer(plan: FieldPlan, api_key: int) -> _Write:
    if plan.struct_type is not None:
        return struct_writer(plan.struct_type, api_key)
    if plan.kind == "string":
        return _text_writer(plan.flexible)
    if plan.kind == "bytes":
        return _bytes_writer(plan.flexible)
    if plan.kind == "records":
        return _records_writer(plan.flexible)
    return _fixed_writer(plan.kind)


def _array_writer(plan: FieldPlan, api_key: int) -> _Write:
    write_value = value_writer(plan, api_key)
    flexible = plan.flexible
    write_length = length_writer(flexible, INT32)

    def write(target: Output, value: Sequence[Any] | EncodedArray | None) -> None:
        if value is None:
            write_length(target, -1)
            return
        size = len(value)
        if flexible and size < 0x7F:
            target.buffer.append(size + 1)
        else:
            write_length(target, size)
        if isinstance(value, EncodedArray):
            target.splice([value.data])
            return
        for element in value:
            write_value(target, element)

    return write


def field_writer(plan: FieldPlan, api_key: int) -> _Write:
    if plan.is_array:
        return _array_writer(plan, api_key)
    write_value = value_writer(plan, api_key)
    if plan.struct_type is not None and plan.nullable and plan.tag is None:

        def write_nullable(target: Output, value: Body | None) -> None:
            target.buffer.append(0xFF if value is None else 1)
            if value is not None:
                write_value(target, value)

        return write_nullable
    if plan.struct_type is not None:
        return lambda target, value: write_value(target, {} if value is None else value)
    return write_value


_WriteStep = tuple[_Write | None, str, Any, tuple[str, ...], tuple[Any, ...], struct.Struct]
"""A field's writer, name and default; without one, of fields of fixed size that follow each other: their names,
defaults and shape."""
_NO_FIELDS = struct.Struct("")


def _write_step(group: Sequence[FieldPlan], api_key: int) -> _WriteStep:
    if group[0].code is None:
        return field_writer(group[0], api_key), group[0].name, group[0].default, (), (), _NO_FIELDS
    shape = struct.Struct(">" + "".join(plan.code or "" for plan in group))
    return None, "", None, tuple(plan.name for plan in group), tuple(plan.default for plan in group), shape


def write_tags(target: Output, tags: Sequence[tuple[int, str, _Write]], values: Body) -> None:
    present = [(tag, name, write_field) for tag, name, write_field in tags if name in values]
    target.unsigned_varint(len(present))
    for tag, name, write_field in present:
        inner = Output()
        write_field(inner, values[name])
        target.unsigned_varint(tag)
        target.unsigned_varint(len(inner.buffer))
        target.buffer += inner.buffer


def struct_writer(struct_type: StructPlan, api_key: int) -> _Write:
    plans = struct_type.fields
    steps = [_write_step(group, api_key) for group in runs_of_fixed([plan for plan in plans if plan.tag is None])]
    tagged = sorted((plan.tag, plan.name, field_writer(plan, api_key)) for plan in plans if plan.tag is not None)
    flexible = struct_type.flexible
    known = field_defaults(api_key, False)[struct_type.name].keys()

    def write(target: Output, values: Body) -> None:
        if not values.keys() <= known:
            raise KeyError(f"{struct_type.name} has no field {sorted(values.keys() - known)}")
        get = values.get
        for write_field, name, default, names, defaults, shape in steps:
            if write_field is not None:
                write_field(target, get(name, default))
            else:
                target.buffer += shape.pack(*map(get, names, defaults))
        if flexible:
            if tagged:
                write_tags(target, tagged, values)
            else:
                target.buffer.append(0)

    return write


def started_response(api_key: int, version: int, correlation_id: int) -> Output:
    """The header of a response, with room for its length.

    ApiVersions has the old response header in every version, because the client cannot know the broker's versions yet.
    """
    target = Output()
    target.buffer += bytes(4)
    target.buffer += INT32.pack(correlation_id)
    if api_key != 18 and is_flexible(api_key, version):
        target.buffer.append(0)
    return target


def finished_response(target: Output) -> list[Buffer]:
    """The buffers of a whole response, its length filled in."""
    if target.buffer:
        target.parts.append(target.buffer)
    first = target.parts[0]
    assert isinstance(first, bytearray)
    INT32.pack_into(first, 0, sum(map(len, target.parts)) - 4)
    return target.parts
