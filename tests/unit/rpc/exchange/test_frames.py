"""A frame written by hand is the frame that protobuf writes, and bytes that are no frame are refused."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kshare_rpc.exchange.frames import FrameError, decode_frame, encode_frame
from kshare_rpc.generated.kshare.v1.common_pb2 import Frame, FrameHeader

headers = st.builds(
    FrameHeader,
    correlation_id=st.integers(0, 2**64 - 1),
    method=st.text(max_size=40),
    message=st.binary(max_size=400),
    failure=st.text(max_size=40),
    traceparent=st.text(max_size=60),
)
pieces = st.lists(st.binary(max_size=20_000), max_size=4)


@given(headers, pieces)
def test_written_as_protobuf_writes_it(header: FrameHeader, payload: list[bytes]) -> None:
    expected = Frame(header_length=header.ByteSize(), header=header, payload=b"".join(payload))
    assert encode_frame(header, [memoryview(piece) for piece in payload]) == expected.SerializeToString()


@given(headers, pieces)
def test_reads_what_protobuf_writes(header: FrameHeader, payload: list[bytes]) -> None:
    whole = b"".join(payload)
    data = Frame(header_length=header.ByteSize(), header=header, payload=whole).SerializeToString()
    found, found_payload = decode_frame(data)
    assert found == header
    assert found_payload == whole


def test_the_payload_is_a_view_of_the_frame() -> None:
    data = encode_frame(FrameHeader(correlation_id=1), [b"x" * 1_000_000])
    _, payload = decode_frame(data)
    assert payload.obj is data


@given(headers, pieces, st.data())
def test_a_frame_that_was_cut_off_is_refused(header: FrameHeader, payload: list[bytes], data: st.DataObject) -> None:
    whole = encode_frame(header, payload)
    end_of_header = len(encode_frame(header))
    length = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at != end_of_header))
    with pytest.raises(FrameError):
        decode_frame(whole[:length])


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_is_what_protobuf_reads(data: bytes) -> None:
    try:
        header, payload = decode_frame(data)
    except FrameError:
        return
    try:
        frame = Frame.FromString(data)
    except DecodeError:
        raise AssertionError("accepted what protobuf refuses") from None
    assert frame.header == header
    assert frame.payload == payload


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "cut off"),
        (b"\x0d\x05\x00\x00\x00\x12\x04\x08\x01\x10\x02", "header_length says 5 bytes, but the header has 4"),
        (b"\x0d\x02\x00\x00\x00\x12\x02\x08\x01\x22\x01x", "expected the payload"),
        (b"\x0d\x02\x00\x00\x00\x12\x02\x08\x01\x1a\x03x", "the payload says 3 bytes, but 1 follow"),
        (b"\x0d\x02\x00\x00\x00\x12\x02\x08\x01\x1a\x01xx", "the payload says 1 bytes, but 2 follow"),
        (b"\x0d\x02\x00\x00\x00\x12\x82\x80\x80\x80\x80\x80\x00\x08\x01", "no length at byte 6"),
        (b"\x0d\x02\x00\x00\x00\x12\x02\x08\xff", "not a FrameHeader"),
        (b"\x12\x02\x08\x01hello", "starts with header_length and header"),
    ],
)
def test_the_error_says_what_is_wrong(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        decode_frame(data)
