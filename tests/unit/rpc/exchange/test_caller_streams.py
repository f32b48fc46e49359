"""A server carries out nothing of a caller's older stream once it has seen a newer one."""

from __future__ import annotations

import asyncio

import h2.connection
import h2.events
import pytest

from kshare_rpc.call_server import CallServer, log_handler_error
from kshare_rpc.exchange import caller_streams
from kshare_rpc.exchange.caller_streams import STREAM_HEADER, CallerStream, CallerStreams, caller_stream_of
from kshare_rpc.exchange.frames import encode_frame
from kshare_rpc.exchange.server import ServerExchange
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.generated.methods import FETCH
from kshare_rpc.network import Payload, Service

OK, INVALID_ARGUMENT, ABORTED = "0", "3", "10"


class _Server:
    """A server without sockets, and the numbers of the calls that it carried out."""

    def __init__(self) -> None:
        self.executed: list[int] = []
        self.connections: dict[ServerExchange, None] = {}
        self.caller_streams = CallerStreams()
        self.calls = CallServer([Service("Leader", {FETCH: self._fetch})], log_handler_error)

    async def _fetch(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, Payload]:
        self.executed.append(request.max_wait_ms)
        return leader_pb2.FetchResponse(), ()


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.is_closed

    def is_reading(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


class _Caller:
    """One connection with one stream, which names itself as `stream`."""

    def __init__(self, server: _Server, stream: str | None) -> None:
        self.transport = _Transport()
        self.exchange = ServerExchange(server.calls, server.connections, server.caller_streams)
        self.exchange.connection_made(self.transport)
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()
        headers = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": "/kshare.v1.Leader/Exchange"}
        self.status: str | None = None
        """How the stream ended."""
        self.h2.send_headers(1, [*headers.items(), *([] if stream is None else [(STREAM_HEADER, stream)])])
        self.deliver()

    def deliver(self) -> None:
        """What it has said arrives."""
        self.exchange.data_received(self.h2.data_to_send())
        written, self.transport.data = self.transport.data, b""
        for event in self.h2.receive_data(written):
            if isinstance(event, h2.events.TrailersReceived):
                self.status = str(dict(event.headers or ())[b"grpc-status"], "ascii")

    def call(self, number: int) -> None:
        """Says a call, which `deliver` brings to the server."""
        message = leader_pb2.FetchRequest(max_wait_ms=number).SerializeToString()
        frame = encode_frame(FrameHeader(correlation_id=number, method=FETCH.path, message=message), ())
        self.h2.send_data(1, bytes(1) + len(frame).to_bytes(4, "big") + frame)

    def end(self) -> None:
        self.exchange.connection_lost(None)


def test_an_older_stream_that_was_open_ends_and_its_late_calls_are_not_carried_out() -> None:
    async def main() -> None:
        server = _Server()
        old = _Caller(server, "a-1")
        other, unnamed = _Caller(server, "b-1"), _Caller(server, None)
        old.call(1)
        old.deliver()
        await asyncio.sleep(0)
        old.call(2)  # it stays in the network for a while
        new = _Caller(server, "a-2")
        assert old.exchange.is_lost and old.transport.is_closed
        new.call(3)
        new.deliver()
        old.exchange.data_received(old.h2.data_to_send())
        for number, caller in enumerate((other, unnamed), 4):
            caller.call(number)
            caller.deliver()
        await asyncio.sleep(0)
        assert server.executed == [1, 3, 4, 5]
        for caller in (old, new, other, unnamed):
            caller.end()

    asyncio.run(main())


def test_an_older_stream_that_arrives_after_a_newer_one_is_refused() -> None:
    async def main() -> None:
        server = _Server()
        new = _Caller(server, "a-2")
        new.end()  # also when the newer one has ended
        old = _Caller(server, "a-1")
        assert old.status == ABORTED
        newest = _Caller(server, "a-3")
        newest.call(1)
        newest.deliver()
        await asyncio.sleep(0)
        assert server.executed == [1] and newest.status is None
        for caller in (old, newest):
            caller.end()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "a", "a-", "-1", "a-x", "a--", "a-\u0661", "a" * 200 + "-1"])
def test_a_value_that_names_no_stream_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an id, '-' and a number are expected"):
        caller_stream_of(text)

    async def main() -> None:
        caller = _Caller(_Server(), text.replace("\u0661", "x"))
        assert caller.status == INVALID_ARGUMENT
        caller.end()

    asyncio.run(main())


def test_the_header_says_the_stream() -> None:
    stream = CallerStream("0123-4567", 12)
    name, value = stream.header()
    assert name == STREAM_HEADER and caller_stream_of(value) == stream


def test_the_callers_that_opened_a_stream_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_streams, "CALLERS_REMEMBERED", 3)
    streams = CallerStreams()
    for name in "abc":
        assert streams.opened(CallerStream(name, 2))
    assert not streams.opened(CallerStream("a", 1))
    assert streams.opened(CallerStream("d", 1)), "b is forgotten"
    assert not streams.opened(CallerStream("a", 1)) and streams.opened(CallerStream("b", 1))
