"""Messages cut from a stream's bytes, windows that are full, and a peer that falls silent."""

from __future__ import annotations

import asyncio
import itertools

import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_rpc.call_server import CallServer, log_handler_error
from kshare_rpc.exchange.caller_streams import CallerStreams
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT, FrameError
from kshare_rpc.exchange.server import ServerExchange
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.http2 import exchange as http2_exchange
from kshare_rpc.http2 import frames as http2_frames
from kshare_rpc.http2.exchange import status_text
from kshare_rpc.http2.frames import PREFIX_BYTES, MessageReader
from kshare_rpc.network import ChannelUnavailable, Payload, Service

TIMEOUT_MS = 10_000


def on_the_wire(message: bytes) -> bytes:
    return len(message).to_bytes(PREFIX_BYTES, "big") + message


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)))
def test_messages_are_whole_however_their_bytes_arrive(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(on_the_wire, messages))
    reader = MessageReader()
    found: list[bytes] = []
    for size in cuts:
        piece, data = data[:size], data[size:]
        if piece:
            found += map(bytes, reader.feed(piece))
    if data:
        found += map(bytes, reader.feed(data))
    assert found == messages


def test_a_compressed_or_too_long_message_is_refused() -> None:
    with pytest.raises(FrameError, match="compressed"):
        MessageReader().feed(b"\x01\x00\x00\x00\x01x")
    with pytest.raises(FrameError, match=f"more than a frame's {FRAME_BYTES_LIMIT}"):
        MessageReader().feed((FRAME_BYTES_LIMIT + 1).to_bytes(PREFIX_BYTES, "big"))


def test_a_status_is_shown_as_people_know_it() -> None:
    assert status_text("14", "come back later") == "UNAVAILABLE come back later"
    assert status_text("99", "?") == "99 ?"


async def _large(request: leader_pb2.FetchRequest, _: memoryview) -> tuple[leader_pb2.FetchResponse, Payload]:
    return leader_pb2.FetchResponse(), [bytes([index]) * 1_000 for index in range(request.max_bytes)]


def test_more_than_the_window_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_frames, "WINDOW_BYTES", 70_000)
    monkeypatch.setattr(http2_frames, "HTTP2_FRAME_BYTES", 16_384)

    async def main() -> None:
        server = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {FETCH: _large})])
        channel = GrpcNetwork().connect(server.address)
        calls = [channel.call(FETCH, leader_pb2.FetchRequest(max_bytes=200), timeout_ms=TIMEOUT_MS) for _ in range(5)]
        for _, payload in await asyncio.gather(*calls):
            assert bytes(payload) == b"".join(bytes([index]) * 1_000 for index in range(200))
        await channel.close()
        await server.stop(0)

    asyncio.run(main())


class _Written(asyncio.Transport):
    """What is written goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False


class StrictCaller:
    """h2 itself at the other end of a served connection; it allows 10 bytes for each stream and knows that it did."""

    def __init__(self, exchange: ServerExchange | None = None) -> None:
        self.transport = _Written()
        self.exchange = exchange or ServerExchange(CallServer([], log_handler_error), {}, CallerStreams())
        self.exchange.connection_made(self.transport)
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
        self.exchange_bytes()
        headers = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": "/kshare.v1.Leader/Exchange"}
        for stream_id in (1, 3):
            self.h2.send_headers(stream_id, list(headers.items()))
        self.exchange_bytes()

    def exchange_bytes(self) -> dict[int, bytes]:
        """Both say what they have to say; the data that came, by stream."""
        found: dict[int, bytes] = {}
        while spoken := self.h2.data_to_send():
            self.exchange.data_received(spoken)
            written, self.transport.data = self.transport.data, b""
            for event in self.h2.receive_data(written):
                if isinstance(event, h2.events.DataReceived):
                    assert event.stream_id is not None and event.data is not None
                    found[event.stream_id] = found.get(event.stream_id, b"") + event.data
        return found


class _Hearing(ServerExchange):
    """Notes its messages instead of serving them."""

    def __init__(self) -> None:
        super().__init__(CallServer([], log_handler_error), {}, CallerStreams())
        self.heard: list[tuple[int, bytes]] = []
        self.failures: list[int] = []

    def stream_message(self, stream_id: int, message: memoryview) -> None:
        self.heard.append((stream_id, bytes(message)))

    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        self.failures.append(stream_id)


@given(
    st.lists(st.tuples(st.sampled_from([1, 3]), st.binary(max_size=60), st.booleans()), max_size=12),
    st.lists(st.one_of(st.just(0), st.integers(1, 60)), min_size=1),
)
def test_messages_of_streams_are_handed_on_in_order_however_frames_are_cut(
    messages: list[tuple[int, bytes, bool]], cuts: list[int]
) -> None:
    """A cut of 0: what was said at once comes at once. After some messages there is something else to hear."""

    async def main() -> None:
        caller = StrictCaller(_Hearing())
        exchange = caller.exchange
        assert isinstance(exchange, _Hearing)
        places = itertools.cycle(cuts)
        for stream_id, message, is_pinged in messages:
            caller.h2.send_data(stream_id, on_the_wire(message))
            if is_pinged:
                caller.h2.ping(b"whatever")
            data = caller.h2.data_to_send()
            while data:
                cut = next(places) or len(data)
                exchange.data_received(data[:cut])
                data = data[cut:]
        assert exchange.heard == [(stream_id, message) for stream_id, message, _ in messages]
        assert not exchange.failures
        exchange.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [False, True])
def test_no_more_is_sent_than_a_stream_takes_and_nothing_to_one_that_ended(at_once: bool) -> None:
    async def main() -> None:
        caller = StrictCaller()
        for stream_id in (1, 3):
            caller.exchange.send(stream_id, bytes([stream_id]) * 20, at_once=at_once)
        caller.h2.ping(b"whatever")
        assert caller.exchange_bytes() == {1: on_the_wire(b"\x01" * 20)[:10]}
        caller.h2.reset_stream(1)
        assert caller.exchange_bytes() == {3: on_the_wire(b"\x03" * 20)[:10]}
        caller.h2.increment_flow_control_window(100, 3)
        assert caller.exchange_bytes() == {3: on_the_wire(b"\x03" * 20)[10:]}
        assert not caller.exchange.has_unsent
        caller.exchange.send(3, b"\x04" * 20, at_once=at_once)
        caller.h2.ping(b"whatever")
        assert caller.exchange_bytes() == {3: on_the_wire(b"\x04" * 20)}
        caller.exchange.send(1, b"\x05", at_once=at_once)
        caller.h2.ping(b"whatever")
        assert caller.exchange_bytes() == {}
        caller.exchange.connection_lost(None)

    asyncio.run(main())


def test_a_peer_without_a_sign_of_life_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_exchange, "KEEPALIVE_INTERVAL_MS", 40)
    monkeypatch.setattr(http2_exchange, "KEEPALIVE_TIMEOUT_MS", 20)

    async def main() -> None:
        opened: list[asyncio.StreamWriter] = []

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(writer)  # it says nothing, ever

        silent = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        channel = GrpcNetwork().connect(address)
        with pytest.raises(ChannelUnavailable, match="no data or ping response"):
            await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS)
        await channel.close()
        for writer in opened:
            writer.close()
            await writer.wait_closed()
        silent.close()
        await silent.wait_closed()

    asyncio.run(main())


def test_a_quiet_peer_that_answers_pings_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_exchange, "KEEPALIVE_INTERVAL_MS", 300)
    monkeypatch.setattr(http2_exchange, "KEEPALIVE_TIMEOUT_MS", 250)

    async def slow(_: leader_pb2.FetchRequest, __: memoryview) -> leader_pb2.FetchResponse:
        await asyncio.sleep(2)  # several pings
        return leader_pb2.FetchResponse()

    async def main() -> None:
        server = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {FETCH: slow})])
        channel = GrpcNetwork().connect(server.address)
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS)
        await channel.close()
        await server.stop(0)

    asyncio.run(main())
