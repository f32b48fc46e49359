"""The frames alone: with h2 at the other end as the judge, and with bytes that no HTTP/2 peer would send."""

from __future__ import annotations

from typing import Any

import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_rpc.exchange.frames import FrameError
from kshare_rpc.http2 import frames as http2_frames
from kshare_rpc.http2.frames import PREFIX_BYTES, Http2Frames

HEADERS = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/kshare.v1.Leader/Exchange")]


class Owner:
    """Keeps what the frames write and what they hear; answers each request with headers, as a server does."""

    def __init__(self, *, short_first: bool = False) -> None:
        self.frames = Http2Frames(self, client_side=False, short_first=short_first)
        self.written = bytearray()
        self.heard: list[tuple[int, bytes]] = []
        self.failures: list[int] = []
        self.given_up = ""
        self.frames.start()

    def write(self, data: bytes | memoryview) -> None:
        self.written += data

    def stream_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            assert event.stream_id is not None
            self.frames.send_headers(event.stream_id, [(":status", "200")])
            self.frames.open_stream(event.stream_id)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self.frames.close_stream(event.stream_id or 0)

    def stream_message(self, stream_id: int, message: memoryview) -> None:
        self.heard.append((stream_id, bytes(message)))

    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        self.failures.append(stream_id)
        self.frames.close_stream(stream_id)

    def violated(self, reason: str) -> None:
        self.give_up(reason)

    def give_up(self, reason: str) -> None:
        self.given_up = reason
        self.frames.end()

    def unsent_changed(self) -> None: ...


class Judge:
    """h2 as the caller: it raises where the frames break the protocol or send more than its windows allow."""

    def __init__(self, owner: Owner, *, window: int) -> None:
        self.owner = owner
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.data: dict[int, bytearray] = {}
        self.exchange()
        for stream_id in (1, 3):
            self.h2.send_headers(stream_id, HEADERS)
        self.exchange()

    def exchange(self) -> None:
        """Both sides say what they have to say, until neither has more."""
        while spoken := self.h2.data_to_send():
            self.owner.frames.receive(spoken)
            written, self.owner.written = bytes(self.owner.written), bytearray()
            for event in self.h2.receive_data(written):
                if isinstance(event, h2.events.DataReceived):
                    assert event.stream_id is not None and event.data is not None
                    self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)


def on_the_wire(message: bytes) -> bytes:
    return len(message).to_bytes(PREFIX_BYTES, "big") + message


@given(
    st.lists(st.tuples(st.sampled_from([1, 3]), st.binary(max_size=200), st.booleans()), max_size=15),
    st.integers(1, 150),
)
def test_what_is_sent_arrives_whole_and_in_order_and_within_the_windows(
    messages: list[tuple[int, bytes, bool]], window: int
) -> None:
    judge = Judge(Owner(), window=window)
    expected = {1: b"", 3: b""}
    for stream_id, message, at_once in messages:
        judge.owner.frames.send(stream_id, message, at_once=at_once)
        expected[stream_id] += on_the_wire(message)
    judge.h2.ping(b"whatever")
    judge.exchange()
    assert {stream_id: bytes(judge.data.get(stream_id, b"")) for stream_id in (1, 3)} == expected
    assert not judge.owner.frames.has_unsent and judge.owner.frames.unsent_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 60_000), st.booleans()), max_size=8))
def test_a_short_answer_overtakes_only_long_ones_that_are_wholly_unsent(sizes: list[tuple[int, bool]]) -> None:
    judge = Judge(Owner(short_first=True), window=20_000)
    for number, (size, at_once) in enumerate(sizes):
        judge.owner.frames.send(1, bytes([number]) * size, at_once=at_once)
    judge.h2.ping(b"whatever")
    judge.exchange()
    reader = http2_frames.MessageReader()
    found = [bytes(message) for message in reader.feed(bytes(judge.data.get(1, b"")))]
    assert sorted(found) == sorted(bytes([number]) * size for number, (size, _) in enumerate(sizes))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=120), max_size=10), st.booleans())
def test_any_bytes_are_heard_or_given_up_and_nothing_else(pieces: list[bytes], has_preface: bool) -> None:
    owner = Owner()
    if has_preface:
        owner.frames.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    for piece in pieces:
        owner.frames.receive(piece)
    assert len(owner.frames._unread) <= http2_frames.HTTP2_FRAME_BYTES + 9


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_in_a_valid_conversation_does_no_harm(data: st.DataObject) -> None:
    """The frames hear the same, hear something else, report the stream, or give the connection up."""
    owner = Owner()
    caller = h2.connection.H2Connection()
    caller.initiate_connection()
    caller.send_headers(1, HEADERS)
    for message in data.draw(st.lists(st.binary(max_size=80), min_size=1, max_size=5)):
        caller.send_data(1, on_the_wire(message))
    said = bytearray(caller.data_to_send())
    said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    while said and not owner.given_up:
        cut = data.draw(st.integers(1, len(said)))
        owner.frames.receive(bytes(said[:cut]))
        del said[:cut]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\xff\xff\xff\0\0\0\0\0\1", id="a frame of 16 MB"),
        pytest.param(b"\0\0\4\x08\0\0\0\0\0\0\0\0\0", id="a window that is widened by nothing"),
        pytest.param(b"\0\0\5\x05\x04\0\0\0\1\0\0\0\0\0", id="a pushed stream"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(frame: bytes) -> None:
    owner = Owner()
    judge = Judge(owner, window=1_000)
    owner.frames.receive(frame)
    assert owner.given_up and judge.owner is owner
