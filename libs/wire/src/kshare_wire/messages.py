"""Kafka's messages to and from bytes, driven by the message definitions that kio ships.

Why not kio's own reader and writer: its native reader allocates what an array length declares before it looks at the
bytes, so a request of thirty bytes aborts the whole process; its writer copies record bytes four times. kio's generated
classes hold all that is needed (names, types, tags, defaults of each version), so this module compiles them once per
(API, version) into readers and writers of its own.

Reading: `decode_request` gives a `Message` whose attributes are the fields of the newest version; a field that the
request's version does not have shows its default, so handlers need no version checks for reading. Times are integers in
milliseconds and their names end in `_ms`; topic ids are 16 bytes; records are a memoryview of the frame, not a copy.
Nothing is allocated for an element before its bytes are known to be there; the elements of all arrays of one request
together are limited to MAXIMUM_ELEMENTS, because an element takes more memory than bytes on the wire, and tagged fields
to MAXIMUM_TAGGED_FIELDS. Whatever is wrong with the bytes raises `MalformedRequest`.

Writing: `encode_response` takes nested dicts with the same names; fields that the version does not have are left out,
fields not given get their default, tagged fields are written only where they are given. A name that no version knows is
a KeyError. The result is a list of buffers to write one after the other; record bytes are in it as they were given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial._introspect import (  # no public way to ask a kio class for its fields' types
    classify_field,
    get_field_tag,
    is_optional,
)

from kshare_core.identifiers import TOPIC_ID_LENGTH

MAXIMUM_ELEMENTS = 250_000
MAXIMUM_TAGGED_FIELDS = 10_000
MAXIMUM_STRING_LENGTH = (1 << 15) - 1
ZERO_ID = bytes(TOPIC_ID_LENGTH)

Buffer = bytes | bytearray | memoryview
Body = Mapping[str, Any]
"""A response as nested dicts; see the module's text."""


class MalformedRequest(Exception):
    """Bytes that are no request of their API and version; the text says what is wrong and where."""


class Message:
    """A decoded struct: its fields are attributes, those of other versions have their defaults."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class _Input:
    """Bytes being read. Reads past the end raise IndexError, struct.error or MalformedRequest."""

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, buffer: memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.elements_left = MAXIMUM_ELEMENTS

    def take(self, length: int) -> memoryview:
        start = self.position
        stop = start + length
        if length < 0 or stop > self.end:
            raise MalformedRequest(
                f"a field of {length} bytes at byte {start}, where {self.end - start} bytes are left"
            )
        self.position = stop
        return self.buffer[start:stop]

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.buffer[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequest(f"a varint at byte {self.position} is longer than five bytes")

    def fixed(self, shape: struct.Struct) -> Any:
        (value,) = shape.unpack_from(self.buffer, self.position)
        self.position += shape.size
        return value


class _Output:
    """Buffers being written: `buffer` grows; record bytes are put between buffers uncopied."""

    __slots__ = ("buffer", "parts")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.parts: list[Buffer] = []

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


_Read = Callable[[_Input], Any]
_Write = Callable[[_Output, Any], None]

_FIXED_CODES = {
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
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class _FieldPlan:
    """What one field of one version is."""

    __slots__ = ("code", "default", "flexible", "is_array", "kind", "name", "nullable", "struct_type", "tag")

    def __init__(self, field: Field[Any], flexible: bool) -> None:
        shape: Any = classify_field(field)
        self.is_array: bool = shape.is_array
        self.struct_type: Any = shape.type_ if is_dataclass(shape.type_) else None
        self.kind: str = field.metadata.get("kafka_type", "struct")
        self.name = field.name + "_ms" if self.kind in _TIMES else field.name
        self.nullable = is_optional(field) and (self.kind not in _FIXED_CODES or self.is_array)
        self.flexible = flexible
        tag = get_field_tag(field)
        self.tag: int | None = None if tag is None else int(tag)
        self.code: str | None = None if self.is_array else _FIXED_CODES.get(self.kind)
        self.default = self._default(field)

    def _default(self, field: Field[Any]) -> Any:
        default = None if field.default is MISSING else field.default
        if isinstance(default, timedelta):
            return round(default / timedelta(milliseconds=1))
        if default is not None and not is_dataclass(default):
            return default
        if self.is_array:
            return None if self.nullable else ()
        if self.code is not None:
            if self.code == "16s":
                return ZERO_ID
            return -1 if self.kind == "datetime_i64" else False if self.kind == "bool" else 0
        return "" if self.kind == "string" and not self.nullable else None


def _plans(struct_type: type) -> list[_FieldPlan]:
    flexible: bool = struct_type.__flexible__  # type: ignore[attr-defined]
    return [_FieldPlan(field, flexible) for field in fields(struct_type)]


def _versions(api_key: int, request: bool) -> Iterator[type]:
    load = load_request_schema if request else load_response_schema
    for version in sorted(schema_name_map[api_key_map[api_key]]):
        yield load(api_key, version)


@cache
def _field_defaults(api_key: int, request: bool) -> dict[str, dict[str, Any]]:
    """Of each struct's name: its fields in any version with the default of the newest version that has them."""
    found: dict[str, dict[str, Any]] = {}

    def visit(struct_type: type) -> None:
        names = found.setdefault(struct_type.__name__, {})
        for plan in _plans(struct_type):
            names[plan.name] = plan.default
            if plan.struct_type is not None:
                visit(plan.struct_type)

    for struct_type in _versions(api_key, request):
        visit(struct_type)
    return found


# Reading


def _array_length(source: _Input, length: int, nullable: bool) -> int | None:
    if length < 0:
        if length == -1 and nullable:
            return None
        raise MalformedRequest(f"an array of {length} elements at byte {source.position}")
    if length > source.end - source.position or length > source.elements_left:
        raise MalformedRequest(
            f"an array that declares {length} elements at byte {source.position}, where "
            f"{source.end - source.position} bytes are left (at most {MAXIMUM_ELEMENTS} elements in a request)"
        )
    source.elements_left -= length
    return length


def _length_reader(flexible: bool, legacy: struct.Struct) -> Callable[[_Input], int]:
    """Reads a length; -1 is null."""
    if flexible:
        return lambda source: source.unsigned_varint() - 1
    return lambda source: int(source.fixed(legacy))


def _text_reader(flexible: bool, nullable: bool) -> _Read:
    length_of = _length_reader(flexible, _INT16)

    def read(source: _Input) -> str | None:
        length = length_of(source)
        if length == -1 and nullable:
            return None
        if length > MAXIMUM_STRING_LENGTH:
            raise MalformedRequest(f"a string of {length} bytes at byte {source.position}; at most 32767 are allowed")
        return str(source.take(length), "utf-8")

    return read


def _bytes_reader(flexible: bool, nullable: bool) -> _Read:
    length_of = _length_reader(flexible, _INT32)

    def read(source: _Input) -> memoryview | None:
        length = length_of(source)
        if length == -1 and nullable:
            return None
        return source.take(length)

    return read


def _element_reader(plan: _FieldPlan, api_key: int, request: bool) -> _Read:
    if plan.struct_type is not None:
        return _struct_reader(plan.struct_type, api_key, request)
    if plan.kind == "string":
        return _text_reader(plan.flexible, False)
    if plan.kind in ("bytes", "records"):
        return _bytes_reader(plan.flexible, False)
    shape = struct.Struct(">" + _FIXED_CODES[plan.kind])
    return lambda source: source.fixed(shape)


def _array_reader(plan: _FieldPlan, api_key: int, request: bool) -> _Read:
    length_of = _length_reader(plan.flexible, _INT32)
    nullable = plan.nullable
    if plan.struct_type is None and plan.kind in _FIXED_CODES:
        code = _FIXED_CODES[plan.kind]
        size = struct.calcsize(">" + code)

        def read_fixed(source: _Input) -> Any:
            length = _array_length(source, length_of(source), nullable)
            if length is None:
                return None
            data = source.take(length * size)
            return struct.unpack(f">{length}{code}" if size < 16 else ">" + code * length, data)

        return read_fixed
    read_element = _element_reader(plan, api_key, request)

    def read(source: _Input) -> Any:
        length = _array_length(source, length_of(source), nullable)
        if length is None:
            return None
        return [read_element(source) for _ in range(length)]

    return read


def _field_reader(plan: _FieldPlan, api_key: int, request: bool) -> _Read:
    if plan.is_array:
        return _array_reader(plan, api_key, request)
    if plan.struct_type is not None:
        read_struct = _struct_reader(plan.struct_type, api_key, request)
        if not plan.nullable or plan.tag is not None:
            return read_struct
        return lambda source: None if source.take(1)[0] > 0x7F else read_struct(source)
    if plan.kind == "string":
        return _text_reader(plan.flexible, plan.nullable)
    if plan.kind in ("bytes", "records"):
        return _bytes_reader(plan.flexible, plan.nullable)
    shape = struct.Struct(">" + _FIXED_CODES[plan.kind])
    return lambda source: source.fixed(shape)


def _runs_of_fixed(plans: Sequence[_FieldPlan]) -> list[list[_FieldPlan]]:
    """Neighbouring fields of fixed size together; every other field alone."""
    groups: list[list[_FieldPlan]] = []
    for plan in plans:
        if groups and plan.code is not None and groups[-1][-1].code is not None:
            groups[-1].append(plan)
        else:
            groups.append([plan])
    return groups


def _group_reader(group: Sequence[_FieldPlan], api_key: int, request: bool) -> Callable[[_Input, dict[str, Any]], None]:
    if group[0].code is not None:
        shape = struct.Struct(">" + "".join(plan.code or "" for plan in group))
        names = tuple(plan.name for plan in group)

        def read_run(source: _Input, values: dict[str, Any]) -> None:
            position = source.position
            values.update(zip(names, shape.unpack_from(source.buffer, position), strict=True))
            source.position = position + shape.size

        return read_run
    name, read_field = group[0].name, _field_reader(group[0], api_key, request)

    def read_one(source: _Input, values: dict[str, Any]) -> None:
        values[name] = read_field(source)

    return read_one


def _read_tags(source: _Input, readers: Mapping[int, tuple[str, _Read]], values: dict[str, Any]) -> None:
    count = source.unsigned_varint()
    if count > MAXIMUM_TAGGED_FIELDS:
        raise MalformedRequest(f"{count} tagged fields at byte {source.position}; at most {MAXIMUM_TAGGED_FIELDS}")
    for _ in range(count):
        tag = source.unsigned_varint()
        length = source.unsigned_varint()
        stop = source.position + length
        source.take(length)
        if tag in readers:
            source.position = stop - length
            name, read_field = readers[tag]
            values[name] = read_field(source)
            if source.position != stop:
                raise MalformedRequest(f"tagged field {tag} says {length} bytes and has another length")


def _struct_reader(struct_type: type, api_key: int, request: bool) -> Callable[[_Input], Message]:
    plans = _plans(struct_type)
    steps = [
        _group_reader(group, api_key, request) for group in _runs_of_fixed([plan for plan in plans if plan.tag is None])
    ]
    tags = {plan.tag: (plan.name, _field_reader(plan, api_key, request)) for plan in plans if plan.tag is not None}
    flexible: bool = struct_type.__flexible__  # type: ignore[attr-defined]
    message_type: type[Message] = type(
        struct_type.__name__, (Message,), dict(_field_defaults(api_key, request)[struct_type.__name__])
    )

    def read(source: _Input) -> Message:
        values: dict[str, Any] = {}
        for step in steps:
            step(source, values)
        if flexible:
            if source.buffer[source.position] == 0:
                source.position += 1
            else:
                _read_tags(source, tags, values)
        return message_type(values)

    return read


# Writing


def _length_writer(flexible: bool, legacy: struct.Struct) -> Callable[[_Output, int], None]:
    if flexible:
        return lambda target, length: target.unsigned_varint(length + 1)

    def write(target: _Output, length: int) -> None:
        target.buffer += legacy.pack(length)

    return write


def _text_writer(flexible: bool) -> _Write:
    write_length = _length_writer(flexible, _INT16)

    def write(target: _Output, value: str | None) -> None:
        if value is None:
            write_length(target, -1)
            return
        data = value.encode()[:MAXIMUM_STRING_LENGTH]
        write_length(target, len(data))
        target.buffer += data

    return write


def _records_writer(flexible: bool) -> _Write:
    write_length = _length_writer(flexible, _INT32)

    def write(target: _Output, value: Sequence[Buffer] | None) -> None:
        if value is None:
            write_length(target, -1)
            return
        write_length(target, sum(map(len, value)))
        if value:
            target.splice(value)

    return write


def _bytes_writer(flexible: bool) -> _Write:
    """Bytes that are no records, and small: they are copied."""
    write_length = _length_writer(flexible, _INT32)

    def write(target: _Output, value: bytes | None) -> None:
        write_length(target, -1 if value is None else len(value))
        target.buffer += value or b""

    return write


def _fixed_writer(kind: str) -> _Write:
    pack = struct.Struct(">" + _FIXED_CODES[kind]).pack

    def write(target: _Output, value: Any) -> None:
        target.buffer += pack(value)

    return write


def _value_writer(plan: _FieldPlan, api_key: int) -> _Write:
    if plan.struct_type is not None:
        return _struct_writer(plan.struct_type, api_key)
    if plan.kind == "string":
        return _text_writer(plan.flexible)
    if plan.kind == "bytes":
        return _bytes_writer(plan.flexible)
    if plan.kind == "records":
        return _records_writer(plan.flexible)
    return _fixed_writer(plan.kind)


def _field_writer(plan: _FieldPlan, api_key: int) -> _Write:
    write_value = _value_writer(plan, api_key)
    if plan.is_array:
        write_length = _length_writer(plan.flexible, _INT32)

        def write_array(target: _Output, value: Sequence[Any] | None) -> None:
            if value is None:
                write_length(target, -1)
                return
            write_length(target, len(value))
            for element in value:
                write_value(target, element)

        return write_array
    if plan.struct_type is not None and plan.nullable and plan.tag is None:

        def write_nullable(target: _Output, value: Body | None) -> None:
            target.buffer.append(0xFF if value is None else 1)
            if value is not None:
                write_value(target, value)

        return write_nullable
    if plan.struct_type is not None:
        return lambda target, value: write_value(target, {} if value is None else value)
    return write_value


def _group_writer(group: Sequence[_FieldPlan], api_key: int) -> Callable[[_Output, Body], None]:
    if group[0].code is not None:
        pack = struct.Struct(">" + "".join(plan.code or "" for plan in group)).pack
        names = [(plan.name, plan.default) for plan in group]

        def write_run(target: _Output, values: Body) -> None:
            get = values.get
            target.buffer += pack(*[get(name, default) for name, default in names])

        return write_run
    name, default, write_field = group[0].name, group[0].default, _field_writer(group[0], api_key)

    def write_one(target: _Output, values: Body) -> None:
        write_field(target, values.get(name, default))

    return write_one


def _write_tags(target: _Output, tags: Sequence[tuple[int, str, _Write]], values: Body) -> None:
    present = [(tag, name, write_field) for tag, name, write_field in tags if name in values]
    target.unsigned_varint(len(present))
    for tag, name, write_field in present:
        inner = _Output()
        write_field(inner, values[name])
        target.unsigned_varint(tag)
        target.unsigned_varint(len(inner.buffer))
        target.buffer += inner.buffer


def _struct_writer(struct_type: type, api_key: int) -> _Write:
    plans = _plans(struct_type)
    steps = [_group_writer(group, api_key) for group in _runs_of_fixed([plan for plan in plans if plan.tag is None])]
    tagged = sorted((plan.tag, plan.name, _field_writer(plan, api_key)) for plan in plans if plan.tag is not None)
    flexible: bool = struct_type.__flexible__  # type: ignore[attr-defined]
    known = _field_defaults(api_key, False)[struct_type.__name__].keys()

    def write(target: _Output, values: Body) -> None:
        if not values.keys() <= known:
            raise KeyError(f"{struct_type.__name__} has no field {sorted(values.keys() - known)}")
        for step in steps:
            step(target, values)
        if flexible:
            if tagged:
                _write_tags(target, tagged, values)
            else:
                target.buffer.append(0)

    return write


# The API


@cache
def _request_reader(api_key: int, version: int) -> Callable[[_Input], Message]:
    return _struct_reader(load_request_schema(api_key, version), api_key, True)


@cache
def _response_writer(api_key: int, version: int) -> _Write:
    return _struct_writer(load_response_schema(api_key, version), api_key)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of the API uses compact lengths and tagged fields (KIP-482)."""
    flexible: bool = load_request_schema(api_key, version).__flexible__
    return flexible


def decode_request(api_key: int, version: int, frame: memoryview, offset: int) -> Message:
    """The request whose body begins at `offset` of the frame; MalformedRequest where the bytes are none."""
    source = _Input(frame, offset)
    try:
        message: Message = _request_reader(api_key, version)(source)
    except (IndexError, struct.error):
        raise MalformedRequest(f"the request ends in the middle of a field, after {len(frame)} bytes") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a string that is not UTF-8: {error}") from None
    return message


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> list[Buffer]:
    """A whole response, with its length and header, as buffers to write one after the other.

    ApiVersions has the old response header in every version, because the client cannot know the broker's versions yet.
    """
    target = _Output()
    target.buffer += bytes(4)
    target.buffer += _INT32.pack(correlation_id)
    if api_key != 18 and is_flexible(api_key, version):
        target.buffer.append(0)
    _response_writer(api_key, version)(target, body)
    if target.buffer:
        target.parts.append(target.buffer)
    first = target.parts[0]
    assert isinstance(first, bytearray)
    _INT32.pack_into(first, 0, sum(map(len, target.parts)) - 4)
    return target.parts
