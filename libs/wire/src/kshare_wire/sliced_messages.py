"""The codec of long messages in slices: the same results as `messages`, from generators that yield between slices.

A generator yields after every SLICE_ELEMENTS elements of arrays, at any depth, and its return value is the message or
the buffers. Messages whose arrays are short never yield; `messages` reads and writes them faster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import (
    INT32,
    FieldPlan,
    StructPlan,
    field_defaults,
    request_plan,
    response_plan,
    runs_of_fixed,
)
from kshare_wire.message_reading import (
    Input,
    Message,
    array_length_reader,
    element_reader,
    field_reader,
    malformed,
    message_class,
    read_tags,
)
from kshare_wire.message_writing import (
    Body,
    Buffer,
    EncodedArray,
    Output,
    field_writer,
    finished_response,
    length_writer,
    started_response,
    value_writer,
    write_tags,
)

SLICED_REQUEST_BYTES = 4 * 1024
"""Requests from this length on may have more elements than a slice; shorter ones have fewer elements than bytes."""

_Reads = Callable[[Input], Generator[None, None, Any]]
_Writes = Callable[[Output, Any], Generator[None, None, None]]


def decode_request_in_slices(
    api_key: int, version: int, frame: memoryview, offset: int
) -> Generator[None, None, tuple[Message, int]]:
    """As `messages.decode_request`, and how many elements the request has in all its arrays (`Input.elements`)."""
    source = Input(frame, offset)
    try:
        message: Message = yield from _request_reader(api_key, version)(source)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise malformed(frame, error) from None
    return message, source.elements


def encode_response_in_slices(
    api_key: int, version: int, correlation_id: int, body: Body
) -> Generator[None, None, list[Buffer]]:
    """As `messages.encode_response`."""
    target = started_response(api_key, version, correlation_id)
    yield from _response_writer(api_key, version)(target, body)
    return finished_response(target)


def encode_array_in_slices(
    api_key: int, version: int, path: Sequence[str], elements: Iterable[Body]
) -> Generator[None, None, EncodedArray]:
    """The encoded array at `path` of a response; to be put in its place in the response's body.

    `path` has the names of fields from the response down to the array, such as ("topics", "partitions"). Arrays within
    the elements may be iterables with a length that make their elements while they are written.
    """
    write_element = _element_writer(api_key, version, tuple(path))
    target = Output()
    length = 0
    for element in elements:
        yield from write_element(target, element)
        length += 1
        target.elements_in_slice += 1
        if target.elements_in_slice >= SLICE_ELEMENTS:
            target.elements_in_slice = 0
            yield
    assert not target.parts, "an encoded array has no records"
    return EncodedArray(length, bytes(target.buffer))


@cache
def _request_reader(api_key: int, version: int) -> _Reads:
    return _struct_reader(request_plan(api_key, version), api_key)


@cache
def _response_writer(api_key: int, version: int) -> _Writes:
    return _struct_writer(response_plan(api_key, version), api_key)


@cache
def _element_writer(api_key: int, version: int, path: tuple[str, ...]) -> _Writes:
    struct_type = response_plan(api_key, version)
    for name in path:
        below = next(plan.struct_type for plan in struct_type.fields if plan.name == name)
        assert below is not None, f"{name} has no fields"
        struct_type = below
    return _struct_writer(struct_type, api_key)


def _has_arrays(struct_type: StructPlan) -> bool:
    """Whether there are arrays, at any depth, whose elements are read or written one by one."""
    return any(
        _is_sliced(plan) or (plan.struct_type is not None and _has_arrays(plan.struct_type))
        for plan in struct_type.fields
    )


def _is_sliced(plan: FieldPlan) -> bool:
    return plan.is_array and plan.tag is None and (plan.struct_type is not None or plan.kind == "string")


def _struct_reader(struct_type: StructPlan, api_key: int) -> _Reads:
    plans = struct_type.fields
    steps: list[tuple[Sequence[FieldPlan], _Reads | None, Callable[[Input], Any] | None, struct.Struct]] = []
    for group in runs_of_fixed([plan for plan in plans if plan.tag is None]):
        first = group[0]
        if first.code is not None:
            steps.append((group, None, None, struct.Struct(">" + "".join(plan.code or "" for plan in group))))
        elif _is_sliced(first):
            steps.append((group, _array_reader(first, api_key), None, INT32))
        else:
            steps.append((group, None, field_reader(first, api_key, True), INT32))
    tags = {plan.tag: (plan.name, field_reader(plan, api_key, True)) for plan in plans if plan.tag is not None}
    flexible = struct_type.flexible
    message_type = message_class(struct_type, api_key, True)

    def read(source: Input) -> Generator[None, None, Message]:
        values: dict[str, Any] = {}
        for group, read_array, read_field, shape in steps:
            if read_array is not None:
                values[group[0].name] = yield from read_array(source)
            elif read_field is not None:
                values[group[0].name] = read_field(source)
            else:
                names = [plan.name for plan in group]
                values.update(zip(names, shape.unpack_from(source.buffer, source.position), strict=True))
                source.position += shape.size
        if flexible:
            read_tags(source, tags, values)
        message = object.__new__(message_type)
        message.__dict__ = values
        return message

    return read


def _array_reader(plan: FieldPlan, api_key: int) -> _Reads:
    length_of = array_length_reader(plan.flexible, plan.nullable)
    nested = plan.struct_type if plan.struct_type is not None and _has_arrays(plan.struct_type) else None
    read_nested = None if nested is None else _struct_reader(nested, api_key)
    read_plain = element_reader(plan, api_key, True)

    def read(source: Input) -> Generator[None, None, Any]:
        length = length_of(source)
        if length is None:
            return None
        found = []
        for _ in range(length):
            found.append(read_plain(source) if read_nested is None else (yield from read_nested(source)))
            source.elements_in_slice += 1
            if source.elements_in_slice >= SLICE_ELEMENTS:
                source.elements_in_slice = 0
                yield
        return found

    return read


def _struct_writer(struct_type: StructPlan, api_key: int) -> _Writes:
    plans = struct_type.fields
    steps: list[tuple[Sequence[FieldPlan], _Writes | None, Callable[[Output, Any], None] | None, struct.Struct]] = []
    for group in runs_of_fixed([plan for plan in plans if plan.tag is None]):
        first = group[0]
        if first.code is not None:
            steps.append((group, None, None, struct.Struct(">" + "".join(plan.code or "" for plan in group))))
        elif _is_sliced(first):
            steps.append((group, _array_writer(first, api_key), None, INT32))
        else:
            steps.append((group, None, field_writer(first, api_key), INT32))
    tagged = sorted((plan.tag, plan.name, field_writer(plan, api_key)) for plan in plans if plan.tag is not None)
    flexible = struct_type.flexible
    known = field_defaults(api_key, False)[struct_type.name].keys()

    def write(target: Output, values: Body) -> Generator[None, None, None]:
        if not values.keys() <= known:
            raise KeyError(f"{struct_type.name} has no field {sorted(values.keys() - known)}")
        get = values.get
        for group, write_array, write_field, shape in steps:
            first = group[0]
            if write_array is not None:
                yield from write_array(target, get(first.name, first.default))
            elif write_field is not None:
                write_field(target, get(first.name, first.default))
            else:
                target.buffer += shape.pack(*[get(plan.name, plan.default) for plan in group])
        if flexible:
            write_tags(target, tagged, values)

    return write


def _array_writer(plan: FieldPlan, api_key: int) -> _Writes:
    write_length = length_writer(plan.flexible, INT32)
    nested = plan.struct_type if plan.struct_type is not None and _has_arrays(plan.struct_type) else None
    write_nested = None if nested is None else _struct_writer(nested, api_key)
    write_plain = value_writer(plan, api_key)

    def write(target: Output, value: Any) -> Generator[None, None, None]:
        if value is None:
            write_length(target, -1)
            return
        write_length(target, len(value))
        if isinstance(value, EncodedArray):
            target.splice([value.data])
            return
        for element in value:
            if write_nested is None:
                write_plain(target, element)
            else:
                yield from write_nested(target, element)
            target.elements_in_slice += 1
            if target.elements_in_slice >= SLICE_ELEMENTS:
                target.elements_in_slice = 0
                yield

    return write
