"""Frames out of a stream that is cut anywhere, and request headers."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_wire.framing import (
    MAXIMUM_HEADER_TAGGED_FIELDS,
    MINIMUM_FRAME_LENGTH,
    SMALL_CHUNK_SIZE,
    FrameReader,
    parse_header,
    produce_acks,
)
from kshare_wire.messages import MalformedRequest

LIMIT = 100_000


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _read_all(reader: FrameReader) -> list[bytes]:
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@given(
    bodies=st.lists(
        st.integers(MINIMUM_FRAME_LENGTH, 3 * SMALL_CHUNK_SIZE).map(lambda size: bytes(i % 251 for i in range(size))),
        max_size=5,
    ),
    cuts=st.lists(st.integers(0, 15 * SMALL_CHUNK_SIZE), max_size=12),
)
def test_frames_do_not_depend_on_how_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(_framed, bodies))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader(LIMIT)
    found: list[bytes] = []
    for start, stop in pairwise(places):
        reader.feed(stream[start:stop])
        found.extend(_read_all(reader))
    assert found == bodies


def test_frames_that_wait_are_given_one_by_one() -> None:
    reader = FrameReader(LIMIT)
    bodies = [bytes([number]) * 8 for number in range(3)]
    reader.feed(b"".join(map(_framed, bodies)))
    assert [bytes(reader.next_frame() or b"") for _ in range(3)] == bodies
    assert reader.next_frame() is None


def test_byte_by_byte() -> None:
    reader = FrameReader(LIMIT)
    body = bytes(range(200)) * 5
    frames = []
    for byte in _framed(body):
        reader.feed(bytes([byte]))
        frames.extend(_read_all(reader))
    assert frames == [body]


def test_a_large_frame_in_one_chunk_is_not_copied() -> None:
    stream = _framed(bytes(2 * SMALL_CHUNK_SIZE))
    reader = FrameReader(LIMIT)
    reader.feed(stream)
    frame = reader.next_frame()
    assert frame is not None and frame.obj is stream


@pytest.mark.parametrize("length", [-1, 0, MINIMUM_FRAME_LENGTH - 1, LIMIT + 1, (1 << 31) - 1, -(1 << 31)])
def test_lengths_that_are_not_allowed(length: int) -> None:
    reader = FrameReader(LIMIT)
    reader.feed(struct.pack(">i", length))
    with pytest.raises(MalformedRequest, match=str(length)):
        reader.next_frame()


def test_the_longest_frame_that_is_allowed() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(_framed(bytes(LIMIT)))
    assert _read_all(reader) == [bytes(LIMIT)]


def test_headers() -> None:
    start = struct.pack(">hhi", 18, 3, 9)
    assert parse_header(memoryview(start + b"\xff\xff" + b"body"), flexible=False) == (18, 3, 9, "", 10)
    assert parse_header(memoryview(start + b"\x00\x03abc" + b"\x00body"), flexible=True) == (18, 3, 9, "abc", 14)
    tagged = b"\x00\x00" + b"\x02" + b"\x05\x02xy" + b"\x06\x00"
    assert parse_header(memoryview(start + tagged), flexible=True).body_offset == 8 + len(tagged)


def test_tagged_fields_of_a_header_are_limited() -> None:
    """A count is refused before its fields are read: a frame of 100 MiB has room for 50 million of them."""
    start = struct.pack(">hhi", 0, 13, 9) + b"\x00\x00"
    allowed = start + bytes([MAXIMUM_HEADER_TAGGED_FIELDS]) + b"\x05\x00" * MAXIMUM_HEADER_TAGGED_FIELDS
    assert parse_header(memoryview(allowed), flexible=True).body_offset == len(allowed)
    more = start + bytes([MAXIMUM_HEADER_TAGGED_FIELDS + 1]) + b"\x05\x00" * (MAXIMUM_HEADER_TAGGED_FIELDS + 1)
    with pytest.raises(MalformedRequest, match="101 tagged fields in a request header; allowed are 0 to 100"):
        parse_header(memoryview(more), flexible=True)
    with pytest.raises(MalformedRequest, match="101 tagged fields in a request header"):
        produce_acks(memoryview(more + b"\x00\xff\xff"), 13)


@pytest.mark.parametrize(
    "rest",
    [b"", b"\x00", b"\x00\x05abc", b"\xff\xfe", b"\x00\x01\xff", b"\x00\x00", b"\x00\x00\x01\x00\x7f",
     b"\x00\x00\xff\xff\xff\xff\xff\xff", b"\x00\x00\xff\x7f"],
)  # fmt: skip
def test_headers_that_are_none(rest: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_header(memoryview(struct.pack(">hhi", 78, 1, 1) + rest), flexible=True)
