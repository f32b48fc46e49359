"""The compiler of readers for one version of a request; `messages` describes their results and errors.

A reader takes one or two steps for each field, so a small request is decoded in a few microseconds or rejected early.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kshare_wire.message_plans import FIXED_CODES, INT16, INT32, FieldPlan, StructPlan, field_defaults, runs_of_fixed

MAXIMUM_ELEMENTS = 250_000
MAXIMUM_TAGGED_FIELDS = 10_000
MAXIMUM_STRING_LENGTH = (1 << 15) - 1


class MalformedRequest(Exception):
    """The bytes are not a request of their API and version; the text says what is wrong and where."""


class Message:
    """A decoded struct: its fields are attributes; fields of other versions have their defaults."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class Input:
    """The bytes of a request being read. Reads past the end raise IndexError, struct.error or MalformedRequest."""

    __slots__ = ("buffer", "byte_elements", "elements_in_slice", "elements_left", "end", "position")

    def __init__(self, buffer: memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.elements_left = MAXIMUM_ELEMENTS
        self.elements_in_slice = 0
        self.byte_elements = 0
        """Elements of one byte, which cost almost nothing."""

    @property
    def elements(self) -> int:
        """Elements of all arrays read so far, at every depth, except those of one byte."""
        return MAXIMUM_ELEMENTS - self.elements_left - self.byte_elements

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


_Read = Callable[[Input], Any]


def _length_reader(flexible: bool, legacy: struct.Struct) -> Callable[[Input], int]:
    """Reads a length; -1 is null."""
    if flexible:
        return lambda source: source.unsigned_varint() - 1
    return lambda source: int(source.fixed(legacy))


def array_length_reader(flexible: bool, nullable: bool) -> Callable[[Input], int | None]:
    """Reads the number of elements of an array; None for null."""
    length_of = _length_reader(flexible, INT32)

    def read(source: Input) -> int | None:
        position = source.position
        byte = source.buffer[position] if flexible else 0
        if 0 < byte < 0x80:
            length = byte - 1
            source.position = position + 1
        else:
            length = length_of(source)
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

    return read


def _text_reader(flexible: bool, nullable: bool) -> _Read:
    length_of = _length_reader(flexible, INT16)

    def read(source: Input) -> str | None:
        start = source.position + 1
        stop = start + source.buffer[start - 1] - 1
        if flexible and start <= stop <= source.end and stop - start < 0x7F:
            source.position = stop
            return str(source.buffer[start:stop], "utf-8")
        length = length_of(source)
        if length == -1 and nullable:
            return None
        if length > MAXIMUM_STRING_LENGTH:
            raise MalformedRequest(f"a string of {length} bytes at byte {source.position}; at most 32767 are allowed")
        return str(source.take(length), "utf-8")

    return read


def _bytes_reader(flexible: bool, nullable: bool) -> _Read:
    length_of = _length_reader(flexible, INT32)

    def read(source: Input) -> memoryview | None:
        length = length_of(source)
        if length == -1 and nullable:
            return None
        return source.take(length)

    return read


def element_reader(plan: FieldPlan, api_key: int, request: bool) -> _Read:
    if plan.struct_type is not None:
        return struct_reader(plan.struct_type, api_key, request)
    if plan.kind == "string":
        return _text_reader(plan.flexible, False)
    if plan.kind in ("bytes", "records"):
        return _bytes_reader(plan.flexible, False)
    shape = struct.Struct(">" + FIXED_CODES[plan.kind])
    return lambda source: source.fixed(shape)


def _array_reader(plan: FieldPlan, api_key: int, request: bool) -> _Read:
    length_of = array_length_reader(plan.flexible, plan.nullable)
    if plan.struct_type is None and plan.kind in FIXED_CODES:
        code = FIXED_CODES[plan.kind]
        size = struct.calcsize(">" + code)
        one = struct.Struct(">" + code)

        def read_fixed(source: Input) -> Any:
            length = length_of(source)
            if length is None:
                return None
            if size == 1:
                source.byte_elements += length
            if length == 1:
                found = one.unpack_from(source.buffer, source.position)
                source.position += size
                return found
            data = source.take(length * size)
            return struct.unpack(f">{length}{code}" if size < 16 else ">" + code * length, data)

        return read_fixed
    read_element = element_reader(plan, api_key, request)

    def read(source: Input) -> Any:
        length = length_of(source)
        if length is None:
            return None
        found = []
        for _ in range(length):
            found.append(read_element(source))  # a comprehension would cost one more call
        return found

    return read


def field_reader(plan: FieldPlan, api_key: int, request: bool) -> _Read:
    if plan.is_array:
        return _array_reader(plan, api_key, request)
    if plan.struct_type is not None:
        read_struct = struct_reader(plan.struct_type, api_key, request)
        if not plan.nullable or plan.tag is not None:
            return read_struct
        return lambda source: None if source.take(1)[0] > 0x7F else read_struct(source)
    if plan.kind == "string":
        return _text_reader(plan.flexible, plan.nullable)
    if plan.kind in ("bytes", "records"):
        return _bytes_reader(plan.flexible, plan.nullable)
    shape = struct.Struct(">" + FIXED_CODES[plan.kind])
    return lambda source: source.fixed(shape)


_ReadStep = tuple[str, _Read | None, tuple[str, ...], struct.Struct]
"""A field and its reader; without one, fields of fixed size that follow each other: their names and shape."""
_NO_FIELDS = struct.Struct("")


def _read_step(group: Sequence[FieldPlan], api_key: int, request: bool) -> _ReadStep:
    if group[0].code is None:
        return group[0].name, field_reader(group[0], api_key, request), (), _NO_FIELDS
    shape = struct.Struct(">" + "".join(plan.code or "" for plan in group))
    return "", None, tuple(plan.name for plan in group), shape


def read_tags(source: Input, readers: Mapping[int, tuple[str, _Read]], values: dict[str, Any]) -> None:
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


def message_class(struct_type: StructPlan, api_key: int, request: bool) -> type[Message]:
    """The class of a struct's messages; its attributes are the defaults of all fields of any version."""
    return type(struct_type.name, (Message,), dict(field_defaults(api_key, request)[struct_type.name]))


def malformed(frame: memoryview, error: Exception) -> MalformedRequest:
    """The MalformedRequest for an error of reading."""
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest(f"a string that is not UTF-8: {error}")
    return MalformedRequest(f"the request ends in the middle of a field, after {len(frame)} bytes")


def struct_reader(struct_type: StructPlan, api_key: int, request: bool) -> Callable[[Input], Message]:
    plans = struct_type.fields
    steps = [
        _read_step(group, api_key, request) for group in runs_of_fixed([plan for plan in plans if plan.tag is None])
    ]
    tags = {plan.tag: (plan.name, field_reader(plan, api_key, request)) for plan in plans if plan.tag is not None}
    flexible = struct_type.flexible
    message_type = message_class(struct_type, api_key, request)
    make = object.__new__

    def read(source: Input) -> Message:
        values: dict[str, Any] = {}
        buffer = source.buffer
        for name, read_field, names, shape in steps:
            if read_field is not None:
                values[name] = read_field(source)
            else:
                values.update(zip(names, shape.unpack_from(buffer, source.position), strict=True))
                source.position += shape.size
        if flexible:
            if buffer[source.position] == 0:
                source.position += 1
            else:
                read_tags(source, tags, values)
        message = make(message_type)
        message.__dict__ = values
        return message

    return read
