"""Messages cut from a stream's bytes, windows that are full, and a peer that falls silent."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_rpc import http2_exchange
from kshare_rpc.frames import FRAME_BYTES_LIMIT, FrameError
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.http2_exchange import PREFIX_BYTES, MessageReader, status_text
from kshare_rpc.methods import FETCH
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
    monkeypatch.setattr(http2_exchange, "WINDOW_BYTES", 70_000)
    monkeypatch.setattr(http2_exchange, "HTTP2_FRAME_BYTES", 16_384)

    async def main() -> None:
        server = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {FETCH: _large})])
        channel = GrpcNetwork().connect(server.address)
        calls = [channel.call(FETCH, leader_pb2.FetchRequest(max_bytes=200), timeout_ms=TIMEOUT_MS) for _ in range(5)]
        for _, payload in await asyncio.gather(*calls):
            assert bytes(payload) == b"".join(bytes([index]) * 1_000 for index in range(200))
        await channel.close()
        await server.stop(0)

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
        with pytest.raises(ChannelUnavailable, match="no sign of life"):
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
