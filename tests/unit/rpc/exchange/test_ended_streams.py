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
        return leader_pb2.ListOffsetsResponse()


def all_at_once(methods: list[Method[Any, Any]]) -> tuple[h2.connection.H2Connection, bytes]:
    """A connection, and the bytes of a stream with these calls and its end."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    names = {":method": "POST", ":scheme": "http", ":authority": "leader", ":path": "/kshare.v1.Leader/Exchange"}
    connection.send_headers(STREAM, [*names.items(), ("content-type", "application/grpc"), ("te", "trailers")])
    for number, method in enumerate(methods, 1):
        frame = encode_frame(FrameHeader(correlation_id=number, method=method.path))
        connection.send_data(STREAM, struct.pack(">BI", 0, len(frame)) + frame)
    connection.end_stream(STREAM)
    return connection, connection.data_to_send()


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
