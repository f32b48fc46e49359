"""The codec of Kafka's messages, driven by the message definitions that kio ships.

Why not kio's own reader and writer: its native reader allocates what an array length declares before it looks at the
bytes, so a request of thirty bytes aborts the whole process; its writer copies record bytes four times. kio's generated
classes have all that is needed (names, types, tags, defaults of each version); `libs/wire/generate_message_plans.py`
makes a table of them. This module compiles the table, once per (API, version), into readers and writers of its own.

**Reading.** `decode_request` returns a `Message` whose attributes are the fields of the newest version. A field that
the request's version does not have shows its default, so handlers need no version checks for reading. Times are
integers in milliseconds and their names end in `_ms`; topic ids are 16 bytes; records are a memoryview of the frame,
not a copy. Nothing is allocated for an element before its bytes are known to be there. The elements of all arrays of
one request together are limited to MAXIMUM_ELEMENTS, because an element takes more memory than bytes on the wire, and
tagged fields to MAXIMUM_TAGGED_FIELDS. Invalid bytes raise `MalformedRequest`.

**Writing.** `encode_response` takes nested dicts with the same names. Fields that the version does not have are left
out, fields not given get their default, and tagged fields are written only where they are given. A name that no version
knows is a KeyError. The result is a list of buffers to write one after the other; it has the given record bytes
uncopied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from kshare_wire.message_plans import ZERO_ID, is_flexible, request_plan, response_plan
from kshare_wire.message_reading import (
    MAXIMUM_ELEMENTS,
    MAXIMUM_STRING_LENGTH,
    MAXIMUM_TAGGED_FIELDS,
    Input,
    MalformedRequest,
    Message,
    malformed,
    struct_reader,
)
from kshare_wire.message_writing import (
    Body,
    Buffer,
    EncodedArray,
    Output,
    finished_response,
    started_response,
    struct_writer,
)

__all__ = [
    "MAXIMUM_ELEMENTS",
    "MAXIMUM_STRING_LENGTH",
    "MAXIMUM_TAGGED_FIELDS",
    "ZERO_ID",
    "Body",
    "Buffer",
    "EncodedArray",
    "MalformedRequest",
    "Message",
    "decode_request",
    "encode_response",
    "is_flexible",
]


@cache
def _request_reader(api_key: int, version: int) -> Callable[[Input], Message]:
    return struct_reader(request_plan(api_key, version), api_key, True)


@cache
def _response_writer(api_key: int, version: int) -> Callable[[Output, Any], None]:
    return struct_writer(response_plan(api_key, version), api_key)


def decode_request(api_key: int, version: int, frame: memoryview, offset: int) -> Message:
    """The request whose body begins at `offset` of the frame; MalformedRequest where the bytes are invalid."""
    source = Input(frame, offset)
    try:
        message: Message = _request_reader(api_key, version)(source)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise malformed(frame, error) from None
    return message


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> list[Buffer]:
    """A whole response, with its length and header, as buffers to write one after the other."""
    target = started_response(api_key, version, correlation_id)
    _response_writer(api_key, version)(target, body)
    return finished_response(target)
