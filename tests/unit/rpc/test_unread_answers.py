"""Answers that a caller does not read: calls with long answers wait, short answers do not."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.message import Message

from kshare_rpc.call_server import CallServer, log_handler_error
from kshare_rpc.exchange.server import LONG_CALLS_PER_TURN, UNREAD_ANSWERS_BYTES, ExchangeListener
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH, LIST_OFFSETS
from kshare_rpc.grpc_channel import GrpcChannel
from kshare_rpc.network import ChannelUnavailable, Handler, Method, Payload, Service

MEBIBYTE = 1024 * 1024
ANSWER_BYTES = 2 * MEBIBYTE
TIMEOUT_MS = 30_000


class Served:
    """A leader whose fetches bring ANSWER_BYTES each; `begun` counts them."""

    def __init__(self, unread_answers_bytes: int | None = None) -> None:
        self.begun = 0
        handlers: dict[Method[Any, Any], Handler] = {FETCH: self.fetch, LIST_OFFSETS: self.list_offsets}
        service = Service("Leader", handlers, unread_answers_bytes=unread_answers_bytes)
        self.calls = CallServer([service], log_handler_error)
        self.listener = ExchangeListener(self.calls, local_sockets=False)

    async def fetch(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, Payload]:
        self.begun += 1
        return leader_pb2.FetchResponse(), [bytes(ANSWER_BYTES)]

    async def list_offsets(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        return leader_pb2.ListOffsetsResponse()


def set_reading(channel: GrpcChannel, *, reads: bool) -> None:
    exchange = channel._exchange
    assert exchange is not None and exchange._transport is not None
    if reads:
        exchange._transport.resume_reading()
    else:
        exchange._transport.pause_reading()


async def settle() -> None:
    for _ in range(300):
        await asyncio.sleep(0.001)


def test_fetches_wait_while_their_caller_does_not_read() -> None:
    async def main() -> None:
        served = Served()
        channel = GrpcChannel(await served.listener.start("127.0.0.1:0"), local_sockets=False)
        await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=TIMEOUT_MS)
        set_reading(channel, reads=False)
        calls = [
            asyncio.ensure_future(channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS))
            for _ in range(60)
        ]
        await settle()
        most = UNREAD_ANSWERS_BYTES + LONG_CALLS_PER_TURN * (ANSWER_BYTES + 100)
        assert served.calls.unsent_bytes <= most, f"{served.begun} began, {served.calls.unsent_bytes} bytes are unsent"
        assert served.begun < 60
        set_reading(channel, reads=True)
        assert {len(payload) for _, payload in await asyncio.gather(*calls)} == {ANSWER_BYTES}
        assert served.calls.unsent_bytes == 0 and not served.calls.holding
        await channel.close()
        await served.listener.stop()

    asyncio.run(main())


def test_a_caller_that_does_not_read_takes_no_more_than_the_process_allows_and_others_go_on() -> None:
    async def main() -> None:
        served = Served(unread_answers_bytes=8 * MEBIBYTE)
        address = await served.listener.start("127.0.0.1:0")
        idle, good = GrpcChannel(address, local_sockets=False), GrpcChannel(address, local_sockets=False)
        for channel in (idle, good):
            await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=TIMEOUT_MS)
        set_reading(idle, reads=False)
        calls = [
            asyncio.ensure_future(idle.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS)) for _ in range(40)
        ]
        await settle()
        assert served.calls.unsent_bytes <= 8 * MEBIBYTE + LONG_CALLS_PER_TURN * (ANSWER_BYTES + 100)
        for _ in range(10):
            _, payload = await good.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS)
            assert len(payload) == ANSWER_BYTES
        await idle.close()
        await settle()
        assert served.calls.unsent_bytes == 0 and not served.calls.holding, "what the caller held is free"
        await asyncio.gather(*calls, return_exceptions=True)
        await good.close()
        await served.listener.stop()

    asyncio.run(main())


def test_a_short_answer_passes_long_ones_that_wait() -> None:
    async def main() -> None:
        served = Served()
        channel = GrpcChannel(await served.listener.start("127.0.0.1:0"), local_sockets=False)
        await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=TIMEOUT_MS)
        set_reading(channel, reads=False)
        order: list[str] = []

        async def note(name: str, method: Method[Any, Any], request: Message) -> None:
            await channel.call(method, request, timeout_ms=TIMEOUT_MS)
            order.append(name)

        long = [asyncio.ensure_future(note("long", FETCH, leader_pb2.FetchRequest())) for _ in range(8)]
        await settle()
        short = asyncio.ensure_future(note("short", LIST_OFFSETS, leader_pb2.ListOffsetsRequest()))
        await settle()
        set_reading(channel, reads=True)
        await asyncio.gather(*long, short)
        assert order.index("short") < 6, order
        await channel.close()
        await served.listener.stop()

    asyncio.run(main())


def test_a_connection_that_is_given_up_ends_although_its_caller_does_not_read() -> None:
    """Its socket stayed open until the kernel gave up the bytes that were written before."""

    async def main() -> None:
        served = Served()
        channel = GrpcChannel(await served.listener.start("127.0.0.1:0"), local_sockets=False)
        await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=TIMEOUT_MS)
        set_reading(channel, reads=False)
        calls = [
            asyncio.ensure_future(channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=TIMEOUT_MS))
            for _ in range(60)
        ]
        await settle()
        (connection,) = served.listener._connections
        transport = connection._transport
        assert transport is not None and transport.get_write_buffer_size() > 0
        connection.give_up("its caller has a newer stream")
        async with asyncio.timeout(5):
            await asyncio.wait([connection._closed])
        set_reading(channel, reads=True)
        assert any(
            isinstance(found, ChannelUnavailable) for found in await asyncio.gather(*calls, return_exceptions=True)
        )
        await channel.close()
        await served.listener.stop()

    asyncio.run(main())
