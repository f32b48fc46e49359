"""The compiler of writers for one version of a message; `messages` describes their input.

A writer is one flat function (`message_source`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import FIXED_CODES, INT16, INT32, FieldPlan, StructPlan, is_sliced, runs_of_fixed
from kshare_wire.message_reading import MAXIMUM_STRING_LENGTH, class_of, is_request
from kshare_wire.message_source import Source
from kshare_wire.structs import Buffer, EncodedArray, Struct


class Output:
    """The buffers of a message while it is written: `buffer` grows; record bytes are put between buffers uncopied."""

    __slots__ = ("buffer", "elements_in_slice", "parts")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.parts: list[Buffer] = []
        self.elements_in_slice = 0

    def splice(self, pieces: Sequence[Buffer]) -> bytearray:
        """Puts the pieces behind what was written so far; the buffer for what follows."""
        self.parts.append(self.buffer)
        self.parts.extend(pieces)
        self.buffer = bytearray()
        return self.buffer


def unsigned_varint(buffer: bytearray, value: int) -> None:
    while value > 0x7F:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


def write_tag(buffer: bytearray, tag: int, write: Callable[[Output, Any], None], value: object) -> None:
    inner = Output()
    write(inner, value)
    unsigned_varint(buffer, tag)
    unsigned_varint(buffer, len(inner.buffer))
    buffer += inner.buffer


_NAMES = {
    "EncodedArray": EncodedArray,
    "int16": INT16.pack,
    "int32": INT32.pack,
    "pack": struct.pack,
    "unsigned_varint": unsigned_varint,
    "write_tag": write_tag,
}


def compiled_writer(root: type[Struct], plan: StructPlan, *, in_slices: bool) -> Callable[[Output, Any], Any]:
    """The writer of a struct; with `in_slices` it is a generator that yields after every SLICE_ELEMENTS."""
    compiler = _WriterCompiler(root, in_slices=in_slices)
    source = compiler.source
    with source.block("def write(target, message):"):
        source.line("buffer = target.buffer")
        compiler.struct("message", plan)
        if in_slices:
            source.line("return")
            source.line("yield")
    (write,) = source.compiled("write")
    return write


class _WriterCompiler:
    """Writes the lines that append fields to `buffer`."""

    def __init__(self, root: type[Struct], *, in_slices: bool) -> None:
        self.source = Source(_NAMES)
        self._root = root
        self._in_slices = in_slices

    def struct(self, message: str, plan: StructPlan) -> None:
        """Appends the struct in the variable `message`."""
        source = self.source
        for group in runs_of_fixed([field for field in plan.fields if field.tag is None]):
            if group[0].code is None:
                self._field(f"{message}.{group[0].name}", group[0])
                continue
            shape = struct.Struct(">" + "".join(field.code or "" for field in group))
            names = ", ".join(f"{message}.{field.name}" for field in group)
            source.line(f"buffer += {source.constant('pack', shape.pack)}({names})")
        if plan.flexible:
            self._tags(message, plan)

    def _tags(self, message: str, plan: StructPlan) -> None:
        """Appends the tagged fields that differ from their defaults, as Kafka does."""
        source = self.source
        tagged = sorted((field.tag, field) for field in plan.fields if field.tag is not None)
        if not tagged:
            source.line("buffer.append(0)")
            return
        defaults = class_of(self._root, plan.name)()
        conditions = {}
        for _, field in tagged:
            default = getattr(defaults, field.name)
            value = f"{message}.{field.name}"
            is_given = f"{value} is not None" if default is None else f"{value} != {default!r}"
            conditions[field.name] = f"len({value}) > 0" if default == () else is_given
        source.line("unsigned_varint(buffer, " + " + ".join(f"({text})" for text in conditions.values()) + ")")
        for tag, field in tagged:
            with source.block(f"if {conditions[field.name]}:"):
                write = source.constant("write", _tag_writer(self._root, field))
                source.line(f"write_tag(buffer, {tag}, {write}, {message}.{field.name})")

    def _field(self, place: str, field: FieldPlan) -> None:
        if field.is_array:
            self._array(place, field)
        elif field.struct_type is not None:
            self._inner_struct(place, field, field.struct_type)
        else:
            self._value(place, field)

    def _inner_struct(self, place: str, field: FieldPlan, plan: StructPlan) -> None:
        source = self.source
        inner = source.local("inner")
        source.line(f"{inner} = {place}")
        if not field.nullable or field.tag is not None:
            self.struct(inner, plan)
            return
        with source.block(f"if {inner} is None:"):
            source.line("buffer.append(0xFF)")
        with source.block("else:"):
            source.line("buffer.append(1)")
            self.struct(inner, plan)

    def _length(self, length: str, field: FieldPlan, legacy: str) -> None:
        source = self.source
        if not field.flexible:
            source.line(f"buffer += {legacy}({length})")
            return
        with source.block(f"if {length} < 0x7F:"):
            source.line(f"buffer.append({length} + 1)")
        with source.block("else:"):
            source.line(f"unsigned_varint(buffer, {length} + 1)")

    def _null(self, field: FieldPlan, legacy: str) -> None:
        self.source.line("buffer.append(0)" if field.flexible else f"buffer += {legacy}(-1)")

    def _value(self, place: str, field: FieldPlan) -> None:
        source = self.source
        if field.kind in FIXED_CODES:
            pack = struct.Struct(">" + FIXED_CODES[field.kind]).pack
            source.line(f"buffer += {source.constant('pack', pack)}({place})")
            return
        legacy = "int16" if field.kind == "string" else "int32"
        value = source.local("value")
        source.line(f"{value} = {place}")
        with source.block(f"if {value} is None:"):
            self._null(field, legacy)
        with source.block("else:"):
            if field.kind == "string":
                source.line(f"data = {value}.encode()[:{MAXIMUM_STRING_LENGTH}]")
                source.line("size = len(data)")
                self._length("size", field, legacy)
                source.line("buffer += data")
            elif field.kind == "records":
                is_one = is_request(self._root)
                source.line(f"size = len({value})" if is_one else f"size = sum(map(len, {value}))")
                self._length("size", field, legacy)
                pieces = f"({value},)" if is_one else value
                with source.block(f"if len({value}):"):
                    source.line(f"buffer = target.splice({pieces})")
            else:
                source.line(f"size = len({value})")
                self._length("size", field, legacy)
                source.line(f"buffer += {value}")

    def _array(self, place: str, field: FieldPlan) -> None:
        source = self.source
        value, size = source.local("value"), source.local("size")
        source.line(f"{value} = {place}")
        with source.block(f"if {value} is None:"):
            self._null(field, "int32")
        with source.block("else:"):
            source.line(f"{size} = len({value})")
            self._length(size, field, "int32")
            if field.struct_type is None and field.kind in FIXED_CODES:
                code = FIXED_CODES[field.kind]
                shape = f"'>' + {code!r} * {size}" if "s" in code else f"f'>{{{size}}}{code}'"
                one = source.constant("pack", struct.Struct(">" + code).pack)
                with source.block(f"if {size} == 1:"):
                    source.line(f"buffer += {one}(*{value})")
                with source.block("else:"):
                    source.line(f"buffer += pack({shape}, *{value})")
                return
            with source.block(f"if {value}.__class__ is EncodedArray:"):
                source.line(f"buffer = target.splice([{value}.data])")
            with source.block("else:"):
                element = source.local("element")
                with source.block(f"for {element} in {value}:"):
                    if field.struct_type is not None:
                        self.struct(element, field.struct_type)
                    else:
                        self._value(element, field)
                    if self._in_slices and is_sliced(field):
                        source.line("target.elements_in_slice += 1")
                        with source.block(f"if target.elements_in_slice >= {SLICE_ELEMENTS}:"):
                            source.line("target.elements_in_slice = 0")
                            source.line("yield")

    def tagged_field(self, field: FieldPlan) -> Callable[[Output, Any], None]:
        """A function of its own that writes a tagged field."""
        source = self.source
        with source.block("def write(target, message):"):
            source.line("buffer = target.buffer")
            self._field("message", field)
        (write,) = source.compiled("write")
        return write


def _tag_writer(root: type[Struct], field: FieldPlan) -> Callable[[Output, Any], None]:
    return _WriterCompiler(root, in_slices=False).tagged_field(field)
