"""The compiler of readers for one version of a message; `messages` describes their results and errors.

A reader is one flat function (`message_source`). Arrays, strings and bytes that are not short and well-formed go
through the functions below, which check the bytes and have the texts of errors.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import FIXED_CODES, INT16, INT32, FieldPlan, StructPlan, is_sliced, runs_of_fixed
from kshare_wire.message_source import Source
from kshare_wire.structs import Struct

MAXIMUM_ELEMENTS = 250_000
MAXIMUM_TAGGED_FIELDS = 4_000
"""Tagged fields of a request that its structs do not define, all structs together; skipping them takes some ms."""
MAXIMUM_STRING_LENGTH = (1 << 15) - 1


class MalformedRequest(Exception):
    """The bytes are not a message of their API and version; the text says what is wrong and where."""


class Input:
    """The bytes of a message being read. Reads past the end raise IndexError, struct.error or MalformedRequest."""

    __slots__ = (
        "buffer",
        "byte_elements",
        "elements_in_slice",
        "elements_left",
        "end",
        "maximum_elements",
        "position",
        "tags_left",
    )

    def __init__(
        self,
        buffer: memoryview,
        position: int,
        maximum_elements: int = MAXIMUM_ELEMENTS,
        maximum_tags: int = MAXIMUM_TAGGED_FIELDS,
    ) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.maximum_elements = maximum_elements
        self.elements_left = maximum_elements
        self.elements_in_slice = 0
        self.byte_elements = 0
        """Elements of one byte, which cost almost nothing."""
        self.tags_left = maximum_tags
        """Tagged fields allowed from here on beyond those that their structs define."""

    @property
    def elements(self) -> int:
        """Elements of all arrays read so far, at every depth, except those of one byte."""
        return self.maximum_elements - self.elements_left - self.byte_elements


ReadValue = Callable[[Input, int], tuple[Any, int]]
"""(source, position) -> (value, position behind it)."""


def unsigned_varint(source: Input, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = source.buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedRequest(f"a varint at byte {position} is longer than five bytes")


def taken(source: Input, position: int, length: int) -> memoryview:
    """The next `length` bytes."""
    stop = position + length
    if length < 0 or stop > source.end:
        raise MalformedRequest(
            f"a field of {length} bytes at byte {position}, where {source.end - position} bytes are left"
        )
    return source.buffer[position:stop]


def compact_length(source: Input, position: int) -> tuple[int, int]:
    """A length as a varint; -1 is null."""
    length, position = unsigned_varint(source, position)
    return length - 1, position


def _length(source: Input, position: int, flexible: bool, legacy: struct.Struct) -> tuple[int, int]:
    if flexible:
        return compact_length(source, position)
    (length,) = legacy.unpack_from(source.buffer, position)
    return length, position + legacy.size


def text_value(source: Input, position: int, flexible: bool, nullable: bool) -> tuple[str | None, int]:
    length, position = _length(source, position, flexible, INT16)
    if length == -1 and nullable:
        return None, position
    if length > MAXIMUM_STRING_LENGTH:
        raise MalformedRequest(f"a string of {length} bytes at byte {position}; at most 32767 are allowed")
    return str(taken(source, position, length), "utf-8"), position + length


def bytes_value(source: Input, position: int, flexible: bool, nullable: bool) -> tuple[memoryview | None, int]:
    length, position = _length(source, position, flexible, INT32)
    if length == -1 and nullable:
        return None, position
    return taken(source, position, length), position + length


def records_in_pieces(
    source: Input, position: int, flexible: bool, nullable: bool
) -> tuple[tuple[memoryview, ...] | None, int]:
    """The records of a response, whose type is pieces to write one after the other; one piece is read."""
    found, position = bytes_value(source, position, flexible, nullable)
    return None if found is None else (found,), position


def refuse_array(source: Input, position: int, length: int) -> None:
    """MalformedRequest for an array that cannot be."""
    if length < 0:
        raise MalformedRequest(f"an array of {length} elements at byte {position}")
    raise MalformedRequest(
        f"an array that declares {length} elements at byte {position}, where "
        f"{source.end - position} bytes are left (at most {source.maximum_elements} elements in a request)"
    )


def fixed_array(source: Input, position: int, length: int, code: str, size: int) -> tuple[tuple[Any, ...], int]:
    """An array of numbers or ids, as a tuple."""
    if size == 1:
        source.byte_elements += length
    data = taken(source, position, length * size)
    found = struct.unpack(f">{length}{code}" if size < 16 else ">" + code * length, data)
    return found, position + length * size


def read_tags(source: Input, position: int, message: Struct, readers: Mapping[int, tuple[str, ReadValue]]) -> int:
    """Reads tagged fields into the message; unknown ones are skipped."""
    count, position = unsigned_varint(source, position)
    # A struct's own tagged fields are bounded as its array's elements are, and are read in their slices.
    source.tags_left -= max(0, count - len(readers))
    if source.tags_left < 0:
        raise MalformedRequest(
            f"{count} tagged fields at byte {position}; allowed are {MAXIMUM_TAGGED_FIELDS} unknown ones in a request"
        )
    for _ in range(count):
        tag, position = unsigned_varint(source, position)
        length, position = unsigned_varint(source, position)
        stop = position + length
        taken(source, position, length)
        if tag in readers:
            name, read = readers[tag]
            value, position = read(source, position)
            setattr(message, name, value)
            if position != stop:
                raise MalformedRequest(f"tagged field {tag} says {length} bytes and has another length")
        position = stop
    return position


def malformed(frame: memoryview, error: Exception) -> MalformedRequest:
    """The MalformedRequest for an error of reading."""
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest(f"a string that is not UTF-8: {error}")
    return MalformedRequest(f"the request ends in the middle of a field, after {len(frame)} bytes")


_NAMES = {
    "bytes_value": bytes_value,
    "compact_length": compact_length,
    "fixed_array": fixed_array,
    "int32": INT32.unpack_from,
    "new": object.__new__,
    "read_tags": read_tags,
    "records_in_pieces": records_in_pieces,
    "refuse_array": refuse_array,
    "text_value": text_value,
}


def compiled_reader(root: type[Struct], plan: StructPlan, *, in_slices: bool) -> Callable[[Input], Any]:
    """The reader of a whole message; with `in_slices` it is a generator that yields after every SLICE_ELEMENTS."""
    compiler = _ReaderCompiler(root, in_slices=in_slices)
    source = compiler.source
    with source.block("def read(source):"):
        source.line("buffer = source.buffer; end = source.end; position = source.position")
        target = compiler.struct(plan)
        source.line("source.position = position")
        source.line(f"return {target}")
        if in_slices:
            source.line("yield")
    (read,) = source.compiled("read")
    return read


class _ReaderCompiler:
    """Writes the lines that read fields from `buffer` at `position`."""

    def __init__(self, root: type[Struct], *, in_slices: bool) -> None:
        self.source = Source(_NAMES)
        self._root = root
        self._in_slices = in_slices

    def struct(self, plan: StructPlan) -> str:
        """Reads a struct; the name of the variable that has it."""
        source = self.source
        kind = class_of(self._root, plan.name)
        target = source.local("struct")
        source.line(f"{target} = new({source.constant(plan.name, kind)})")
        in_place = [field for field in plan.fields if field.tag is None]
        self._defaults(target, kind, {field.name for field in in_place})
        for group in runs_of_fixed(in_place):
            if group[0].code is None:
                self._field(f"{target}.{group[0].name}", group[0])
                continue
            shape = struct.Struct(">" + "".join(field.code or "" for field in group))
            names = ", ".join(f"{target}.{field.name}" for field in group)
            source.line(f"{names}, = {source.constant('unpack', shape.unpack_from)}(buffer, position)")
            source.line(f"position += {shape.size}")
        if plan.flexible:
            self._tags(target, plan)
        return target

    def _defaults(self, target: str, kind: type[Struct], present: set[str]) -> None:
        absent = [name for name in kind.__slots__ if name not in present]
        if not absent:
            return
        defaults = kind()
        for name in absent:
            default = getattr(defaults, name)
            is_struct = isinstance(default, Struct)
            value = f"{self.source.constant('default', type(default))}()" if is_struct else repr(default)
            self.source.line(f"{target}.{name} = {value}")

    def _tags(self, target: str, plan: StructPlan) -> None:
        source = self.source
        tagged = {
            field.tag: (field.name, _tag_reader(self._root, field)) for field in plan.fields if field.tag is not None
        }
        with source.block("if buffer[position] == 0:"):
            source.line("position += 1")
        with source.block("else:"):
            source.line(f"position = read_tags(source, position, {target}, {source.constant('tags', tagged)})")

    def _field(self, place: str, field: FieldPlan) -> None:
        if field.is_array:
            self._array(place, field)
        elif field.struct_type is not None:
            self._inner_struct(place, field, field.struct_type)
        else:
            self._value(place, field, nullable=field.nullable)

    def _inner_struct(self, place: str, field: FieldPlan, plan: StructPlan) -> None:
        source = self.source
        if not field.nullable or field.tag is not None:
            source.line(f"{place} = {self.struct(plan)}")
            return
        source.line("position += 1")
        with source.block("if buffer[position - 1] > 0x7F:"):
            source.line(f"{place} = None")
        with source.block("else:"):
            source.line(f"{place} = {self.struct(plan)}")

    def _value(self, place: str, field: FieldPlan, *, nullable: bool) -> None:
        source = self.source
        if field.kind == "string" and field.flexible:
            source.line("start = position + 1; stop = position + buffer[position]")
            with source.block("if start <= stop <= end and stop - start < 0x7F:"):
                source.line(f"{place} = str(buffer[start:stop], 'utf-8'); position = stop")
            with source.block("else:"):
                source.line(f"{place}, position = text_value(source, position, True, {nullable})")
            return
        if field.kind in ("string", "bytes", "records"):
            reads = {"string": "text_value", "bytes": "bytes_value", "records": "records_in_pieces"}[field.kind]
            if field.kind == "records" and is_request(self._root):
                reads = "bytes_value"
            source.line(f"{place}, position = {reads}(source, position, {field.flexible}, {nullable})")
            return
        shape = struct.Struct(">" + FIXED_CODES[field.kind])
        source.line(f"{place}, = {source.constant('unpack', shape.unpack_from)}(buffer, position)")
        source.line(f"position += {shape.size}")

    def _array(self, place: str, field: FieldPlan) -> None:
        source = self.source
        length = source.local("length")
        if field.flexible:
            source.line(f"{length} = buffer[position] - 1")
            with source.block(f"if 0 <= {length} < 0x7F:"):
                source.line("position += 1")
            with source.block("else:"):
                source.line(f"{length}, position = compact_length(source, position)")
        else:
            source.line(f"{length}, = int32(buffer, position)")
            source.line("position += 4")
        if field.nullable:
            with source.block(f"if {length} == -1:"):
                source.line(f"{place} = None")
            with source.block("else:"):
                self._elements(place, field, length)
        else:
            self._elements(place, field, length)

    def _elements(self, place: str, field: FieldPlan, length: str) -> None:
        source = self.source
        with source.block(f"if {length} < 0 or {length} > end - position or {length} > source.elements_left:"):
            source.line(f"refuse_array(source, position, {length})")
        source.line(f"source.elements_left -= {length}")
        if field.struct_type is None and field.kind in FIXED_CODES:
            code = FIXED_CODES[field.kind]
            size = struct.calcsize(">" + code)
            source.line(f"{place}, position = fixed_array(source, position, {length}, {code!r}, {size})")
            return
        found = source.local("found")
        source.line(f"{found} = []")
        with source.block(f"for _ in range({length}):"):
            if field.struct_type is not None:
                element = self.struct(field.struct_type)
            else:
                element = source.local("element")
                self._value(element, field, nullable=False)
            source.line(f"{found}.append({element})")
            if self._in_slices and is_sliced(field):
                source.line("source.elements_in_slice += 1")
                with source.block(f"if source.elements_in_slice >= {SLICE_ELEMENTS}:"):
                    source.line("source.elements_in_slice = 0")
                    source.line("yield")
        source.line(f"{place} = {found}")

    def tagged_field(self, field: FieldPlan) -> ReadValue:
        """A function of its own that reads a tagged field."""
        source = self.source
        with source.block("def read(source, position):"):
            source.line("buffer = source.buffer; end = source.end")
            self._field("value", field)
            source.line("return value, position")
        (read,) = source.compiled("read")
        return read


def _tag_reader(root: type[Struct], field: FieldPlan) -> ReadValue:
    return _ReaderCompiler(root, in_slices=False).tagged_field(field)


def is_request(root: type[Struct]) -> bool:
    return hasattr(root, "RESPONSE")


def class_of(root: type[Struct], name: str) -> type[Struct]:
    """The class of a struct of this name within the message `root`."""
    found: type[Struct] = getattr(sys.modules[root.__module__], name)
    return found
