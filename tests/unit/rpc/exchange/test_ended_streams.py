"""Streams whose caller has sent its last call: every call is answered first, and then the stream ends."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from kshare_rpc.call_server import CallServer, log_handler_error
from kshare_rpc.exchange import server
from kshare_rpc.exchange.frames import decode_frame, encode_frame
from kshare_rpc.exchange.server import LONG_CALLS_PER_TURN, ExchangeListener
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.generated.methods import FETCH, LIST_OFFSETS
from kshare_rpc.grpc_channel import cast_headers
from kshare_rpc.network import Handler, Method, Payload, Service

MEBIBYTE = 1024 * 1024
TIMEOUT_S = 10.0
MANY = 3 * LONG_CALLS_PER_TURN
STREAM = 1


class Leader:
    """Each of its fetches brings `answer_bytes`."""

    def __init__(self, answer_bytes: int) -> None:
        self._answer_bytes = answer_bytes
        self.may_answer = asyncio.Event()
        """ListOffsets waits until it is set."""
        self.may_answer.set()
        self.begun = 0
        handlers: dict[Method[Any, Any], Handler] = {FETCH: self.fetch, LIST_OFFSETS: self.list_offsets}
        calls = CallServer([Service("Leader", handlers)], log_handler_error)
        self.listener = ExchangeListener(calls, local_sockets=False)

    async def fetch(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, Payload]:
        return leader_pb2.FetchResponse(), [bytes(self._answer_bytes)]

    async def list_offsets(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        self.begun += 1
        await self.may_answer.wait()
        return leader_pb2.ListOffsetsResponse()


def all_at_once(methods: list[Method[Any, Any]]) -> tuple[h2.connection.H2Connection, bytes]:
    """A connection, and the bytes of a stream with these calls and its end."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    send_calls(connection, STREAM, methods)
    connection.end_stream(STREAM)
    return connection, connection.data_to_send()


def send_calls(connection: h2.connection.H2Connection, stream_id: int, methods: list[Method[Any, Any]]) -> None:
    """Opens a stream with these calls; their correlation ids begin with 1."""
    names = {":method": "POST", ":scheme": "http", ":authority": "leader", ":path": "/kshare.v1.Leader/Exchange"}
    connection.send_headers(stream_id, [*names.items(), ("content-type", "application/grpc"), ("te", "trailers")])
    for number, method in enumerate(methods, 1):
        frame = encode_frame(FrameHeader(correlation_id=number, method=method.path))
        connection.send_data(stream_id, struct.pack(">BI", 0, len(frame)) + frame)


async def answers_until_the_end(address: str, methods: list[Method[Any, Any]]) -> list[int]:
    """The correlation ids of the answers to the calls of one stream."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connection, data = all_at_once(methods)
    writer.write(data)
    received, has_ended = bytearray(), False
    while not has_ended:
        for event in connection.receive_data(await reader.read(MEBIBYTE)):
            if isinstance(event, h2.events.DataReceived):
                received += event.data or b""
                connection.acknowledge_received_data(event.flow_controlled_length or 0, STREAM)
            elif isinstance(event, h2.events.TrailersReceived):
                assert dict(cast_headers(event.headers))["grpc-status"] == "0"
            has_ended |= isinstance(event, h2.events.StreamEnded)
        writer.write(connection.data_to_send())
    writer.close()
    await writer.wait_closed()
    found = []
    while received:
        (length,) = struct.unpack_from(">I", received, 1)
        found.append(decode_frame(bytes(received[5 : 5 + length]))[0].correlation_id)
        del received[: 5 + length]
    return found


@pytest.mark.parametrize(
    ("methods", "answer_bytes"),
    [
        ([LIST_OFFSETS] * MANY, 10),
        ([FETCH] * MANY, 10),
        ([LIST_OFFSETS, *[FETCH] * MANY, LIST_OFFSETS], 10),
        ([FETCH] * MANY, MEBIBYTE),
        ([FETCH], 8 * MEBIBYTE),
    ],
    ids=["short-answers", "calls-that-wait", "calls-that-wait-between-others", "unsent-answers", "an-unsent-answer"],
)
def test_a_stream_ends_after_the_answers_to_all_of_its_calls(
    methods: list[Method[Any, Any]], answer_bytes: int
) -> None:
    """Calls that waited were dropped if no other of their stream was under way; unsent answers kept it open."""

    async def scenario() -> list[int]:
        leader = Leader(answer_bytes)
        address = await leader.listener.start("127.0.0.1:0")
        async with asyncio.timeout(TIMEOUT_S):
            found = await answers_until_the_end(address, methods)
        await leader.listener.stop()
        return found

    assert sorted(asyncio.run(scenario())) == list(range(1, len(methods) + 1))


def test_calls_that_wait_begin_when_those_of_a_stream_that_was_reset_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of calls the connection is not read; only the end of a call goes on with those that wait."""
    monkeypatch.setattr(server, "CALLS_PER_STREAM_LIMIT", 2)

    async def answered_to_the_next_stream(leader: Leader, address: str) -> int:
        leader.may_answer.clear()
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        connection, data = all_at_once([LIST_OFFSETS, LIST_OFFSETS])
        writer.write(data)
        while leader.begun < 2:
            await asyncio.sleep(0)
        connection.reset_stream(STREAM)
        send_calls(connection, STREAM + 2, [LIST_OFFSETS])
        writer.write(connection.data_to_send())
        (served,) = leader.listener._connections
        while not served._waiting:
            await asyncio.sleep(0)
        leader.may_answer.set()
        received = b""
        while not received:
            for event in connection.receive_data(await reader.read(MEBIBYTE)):
                if isinstance(event, h2.events.DataReceived):
                    assert event.stream_id == STREAM + 2
                    received += event.data or b""
        writer.close()
        return decode_frame(received[5:])[0].correlation_id

    async def scenario() -> int:
        leader = Leader(10)
        address = await leader.listener.start("127.0.0.1:0")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answered_to_the_next_stream(leader, address)
        finally:
            await leader.listener.stop()

    assert asyncio.run(scenario()) == 1
