"""The codec of Kafka's messages, which are the classes of `kshare_wire.generated.requests` and `responses`.

Why not kio's own reader and writer: its native reader allocates what an array length declares before it looks at the
bytes, so a request of thirty bytes aborts the whole process; its writer copies record bytes four times. kio's generated
classes have all that is needed (names, types, tags, defaults of each version); `libs/wire/generate_messages.py` makes a
table and typed classes of them. This module compiles readers and writers from the table, once per (API, version).

**Reading.** A message is an object of its class (`structs`). A field that its version does not have shows its default.
Nothing is allocated for an element before its bytes are known to be there. The elements of all arrays of one request
together are limited to MAXIMUM_ELEMENTS, because an element takes more memory than bytes on the wire, and its tagged
fields that no struct defines to MAXIMUM_TAGGED_FIELDS, because they are not read in slices. Invalid bytes raise
`MalformedRequest`.

**Writing.** Fields that the version does not have are left out, and tagged fields are written where they differ from
their defaults. The result is a list of buffers to write one after the other; it has the given record bytes uncopied.

**In slices.** The generators give the same results, and yield after every SLICE_ELEMENTS elements of arrays, at any
depth. Messages whose arrays are short never yield; the plain functions read and write them faster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import INT32, StructPlan, is_flexible, request_plan, response_plan
from kshare_wire.message_reading import (
    MAXIMUM_ELEMENTS,
    MAXIMUM_STRING_LENGTH,
    MAXIMUM_TAGGED_FIELDS,
    Input,
    MalformedRequest,
    compiled_reader,
    malformed,
)
from kshare_wire.message_writing import Output, compiled_writer
from kshare_wire.structs import ZERO_ID, Buffer, EncodedArray, Request, Response, Struct

__all__ = [
    "MAXIMUM_ELEMENTS",
    "MAXIMUM_STRING_LENGTH",
    "MAXIMUM_TAGGED_FIELDS",
    "ZERO_ID",
    "Buffer",
    "EncodedArray",
    "MalformedRequest",
    "Request",
    "Response",
    "Struct",
    "decode_request",
    "decode_request_in_slices",
    "decode_response",
    "encode_array_in_slices",
    "encode_request",
    "encode_response",
    "encode_response_in_slices",
    "is_flexible",
]

SLICED_REQUEST_BYTES = 4 * 1024
"""Requests from this length on may have more elements than a slice; shorter ones have fewer elements than bytes."""
MAXIMUM_RESPONSE_ELEMENTS = 1 << 30
"""Clients trust the cluster that they ask; the bytes of a response limit its elements and its tagged fields."""
API_VERSIONS = 18

ARequest = TypeVar("ARequest", bound=Request[Any])
AResponse = TypeVar("AResponse", bound=Response)
AnElement = TypeVar("AnElement", bound=Struct)


def decode_request(kind: type[ARequest], version: int, frame: memoryview, offset: int) -> ARequest:
    """The request whose body begins at `offset` of the frame; MalformedRequest where the bytes are invalid."""
    source = Input(frame, offset)
    try:
        message: ARequest = _reader(kind, version, False)(source)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise malformed(frame, error) from None
    return message


def decode_request_in_slices(
    kind: type[ARequest], version: int, frame: memoryview, offset: int
) -> Generator[None, None, tuple[ARequest, int]]:
    """As `decode_request`, and how many elements the request has in all its arrays (`Input.elements`)."""
    source = Input(frame, offset)
    try:
        message: ARequest = yield from _reader(kind, version, True)(source)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise malformed(frame, error) from None
    return message, source.elements


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response, with its length and header."""
    target = _started_response(message.API_KEY, version, correlation_id)
    _writer(type(message), version, False)(target, message)
    return _finished(target)


def encode_response_in_slices(
    message: Response, version: int, correlation_id: int
) -> Generator[None, None, list[Buffer]]:
    """As `encode_response`."""
    target = _started_response(message.API_KEY, version, correlation_id)
    yield from _writer(type(message), version, True)(target, message)
    return _finished(target)


def encode_array_in_slices(
    kind: type[Response], version: int, path: Sequence[str], elements: Iterable[AnElement]
) -> Generator[None, None, EncodedArray[AnElement]]:
    """The encoded array at `path` of a response; to be put in its place in the response.

    `path` has the names of fields from the response down to the array, such as ("topics", "partitions"). Arrays within
    the elements may make their elements while they are written.
    """
    write_element = _element_writer(kind, version, tuple(path))
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


def encode_request(message: Request[Any], version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A whole request, with its length and header."""
    target = Output()
    data = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(data)
    target.buffer += struct.pack(">ihhih", 0, message.API_KEY, version, correlation_id, size) + data
    if is_flexible(message.API_KEY, version):
        target.buffer.append(0)
    _writer(type(message), version, False)(target, message)
    return _finished(target)


def decode_response(kind: type[AResponse], version: int, frame: memoryview) -> AResponse:
    """The response of a frame, which begins with the correlation id; MalformedRequest where the bytes are invalid."""
    has_tags = kind.API_KEY != API_VERSIONS and is_flexible(kind.API_KEY, version)
    source = Input(frame, 5 if has_tags else 4, MAXIMUM_RESPONSE_ELEMENTS, MAXIMUM_RESPONSE_ELEMENTS)
    try:
        message: AResponse = _reader(kind, version, False)(source)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise malformed(frame, error) from None
    if source.position != len(frame):
        raise MalformedRequest(f"a response of {len(frame)} bytes ends at byte {source.position}")
    return message


_Kind = type[Request[Any]] | type[Response]
_READERS: dict[tuple[_Kind, int, bool], Callable[[Input], Any]] = {}
_WRITERS: dict[tuple[_Kind, int, bool], Callable[[Output, Any], Any]] = {}
_ELEMENT_WRITERS: dict[tuple[_Kind, int, tuple[str, ...]], Callable[[Output, Any], Any]] = {}


def _plan(kind: _Kind, version: int) -> StructPlan:
    find = request_plan if issubclass(kind, Request) else response_plan
    return find(kind.API_KEY, version)


def _reader(kind: _Kind, version: int, in_slices: bool) -> Callable[[Input], Any]:
    found = _READERS.get((kind, version, in_slices))
    if found is None:
        found = compiled_reader(kind, _plan(kind, version), in_slices=in_slices)
        _READERS[kind, version, in_slices] = found
    return found


def _writer(kind: _Kind, version: int, in_slices: bool) -> Callable[[Output, Any], Any]:
    found = _WRITERS.get((kind, version, in_slices))
    if found is None:
        found = compiled_writer(kind, _plan(kind, version), in_slices=in_slices)
        _WRITERS[kind, version, in_slices] = found
    return found


def _element_writer(kind: _Kind, version: int, path: tuple[str, ...]) -> Callable[[Output, Any], Any]:
    found = _ELEMENT_WRITERS.get((kind, version, path))
    if found is not None:
        return found
    plan = _plan(kind, version)
    for name in path:
        below = next(field.struct_type for field in plan.fields if field.name == name)
        assert below is not None, f"{name} has no fields"
        plan = below
    found = _ELEMENT_WRITERS[kind, version, path] = compiled_writer(kind, plan, in_slices=True)
    return found


def _started_response(api_key: int, version: int, correlation_id: int) -> Output:
    """The header of a response, with room for its length.

    ApiVersions has the old response header in every version, because the client cannot know the broker's versions yet.
    """
    target = Output()
    target.buffer += bytes(4)
    target.buffer += INT32.pack(correlation_id)
    if api_key != API_VERSIONS and is_flexible(api_key, version):
        target.buffer.append(0)
    return target


def _finished(target: Output) -> list[Buffer]:
    """The buffers of a whole message, its length filled in."""
    if target.buffer:
        target.parts.append(target.buffer)
    first = target.parts[0]
    assert isinstance(first, bytearray)
    INT32.pack_into(first, 0, sum(map(len, target.parts)) - 4)
    return target.parts
