"""gRPC's own behaviour: health, reflection, unary calls, garbled streams, limits, and connecting in any order."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kshare_core.health_services import LIVENESS
from kshare_rpc import call_server, grpc_channel, operations_server
from kshare_rpc.exchange import server
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT, decode_frame, encode_frame
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1.common_pb2 import Frame, FrameHeader
from kshare_rpc.generated.methods import PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH
from kshare_rpc.grpc_channel import GrpcChannel
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, CallNotStarted, ChannelUnavailable, ConnectTimeout, Handler, Server, Service
from support.environment.machine_stalls import MachineStalls

TIMEOUT_MS = 10_000


class Leader:
    def __init__(self) -> None:
        self.healthy = True
        self.entered = 0
        self.go_on = asyncio.Event()
        self.errors: list[str] = []
        self.health_error: Exception | None = None

    def service(self) -> Service:
        handlers: dict[Any, Handler] = {
            PRODUCE: self.produce,
            SHARE_FETCH: self.share_fetch,
            SHARE_ACKNOWLEDGE: self.share_acknowledge,
        }
        return Service("Leader", handlers, self.is_healthy)

    def is_healthy(self) -> bool:
        if self.health_error is not None:
            raise self.health_error
        return self.healthy

    async def produce(self, request: leader_pb2.ProduceRequest, payload: memoryview) -> Message:
        assert not request.payload
        return leader_pb2.ProduceResponse(
            partitions=[leader_pb2.ProduceResponse.Partition(base_offset=len(payload), partition=request.acks)]
        )

    async def share_fetch(
        self, request: leader_pb2.ShareFetchRequest, _: memoryview
    ) -> tuple[Message, list[bytes | memoryview]]:
        if request.max_bytes:
            return leader_pb2.ShareFetchResponse(), [bytes(request.max_bytes)]
        return leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=9), [b"one", b"two"]

    async def share_acknowledge(self, request: leader_pb2.ShareAcknowledgeRequest, _: memoryview) -> Message:
        if request.is_renew_ack:
            raise RuntimeError("a bug")
        self.entered += 1
        await self.go_on.wait()
        return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=5)


Scene = Callable[[Leader, Server, grpc.aio.Channel], Awaitable[None]]


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[Leader, Server, grpc.aio.Channel]]:
    """A served leader, and a plain gRPC channel to its operations face as any other client has."""
    leader = Leader()
    network = GrpcNetwork(on_handler_error=lambda path, error: leader.errors.append(f"{path}: {error}"))
    server = await network.serve("127.0.0.1:0", [leader.service()])
    assert network.operations_address is not None
    async with asyncio.timeout(30), grpc.aio.insecure_channel(network.operations_address) as channel:
        yield leader, server, channel
    await server.stop(0)


def unary(channel: grpc.aio.Channel, name: str, response: type[Message]) -> Any:
    return channel.unary_unary(
        f"/kshare.v1.Leader/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )


@asynccontextmanager
async def exchange(server: Server) -> AsyncIterator[Any]:
    """An Exchange stream as grpcio opens it."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        raw: Any = channel.stream_stream("/kshare.v1.Leader/Exchange")
        yield raw()


def test_health_follows_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_server, "HEALTH_INTERVAL_MS", 10)
    status = health_pb2.HealthCheckResponse

    async def main() -> None:
        async with scene() as (leader, server, channel):
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for name in ("", "kshare.v1.Leader"):
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == status.SERVING
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="kshare.v1.Leader"))
            assert (await watch.read()).status == status.SERVING
            leader.healthy = False
            assert (await watch.read()).status == status.NOT_SERVING
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == status.NOT_SERVING
            alive = await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS))
            assert alive.status == status.SERVING, "what is not ready must not be started again for it"
            leader.healthy = True
            assert (await watch.read()).status == status.SERVING
            await server.stop(0)
            assert (await watch.read()).status == status.NOT_SERVING

    asyncio.run(main())


def test_a_service_whose_health_cannot_be_determined_is_not_serving_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations_server, "HEALTH_INTERVAL_MS", 10)
    status = health_pb2.HealthCheckResponse

    async def main() -> None:
        async with scene() as (leader, _, channel):
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="kshare.v1.Leader"))
            assert (await watch.read()).status == status.SERVING
            leader.health_error = RuntimeError("a bug")
            assert (await watch.read()).status == status.NOT_SERVING
            assert leader.errors[0] == "the health of Leader: a bug"
            leader.health_error = None
            assert (await watch.read()).status == status.SERVING

    asyncio.run(main())


def test_reflection_shows_the_service_and_its_messages() -> None:
    async def main() -> None:
        async with scene() as (_, _, channel):
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = [service.name for service in (await call.read()).list_services_response.service]
            assert {"kshare.v1.Leader", "grpc.health.v1.Health"} <= set(names)
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="kshare.v1.Leader"))
            files = (await call.read()).file_descriptor_response.file_descriptor_proto
            assert any(b"ShareAcknowledge" in file for file in files)
            call.cancel()

    asyncio.run(main())


def test_unary_calls_carry_the_payload_in_the_message() -> None:
    async def main() -> None:
        async with scene() as (leader, _, channel):
            produce = unary(channel, "Produce", leader_pb2.ProduceResponse)
            answer = await produce(leader_pb2.ProduceRequest(acks=-1, payload=b"12345"))
            assert (answer.partitions[0].base_offset, answer.partitions[0].partition) == (5, -1)
            answer = await unary(channel, "ShareFetch", leader_pb2.ShareFetchResponse)(leader_pb2.ShareFetchRequest())
            assert (answer.acquisition_lock_timeout_ms, answer.payload) == (9, b"onetwo")
            leader.go_on.set()
            acknowledge = unary(channel, "ShareAcknowledge", leader_pb2.ShareAcknowledgeResponse)
            assert (await acknowledge(leader_pb2.ShareAcknowledgeRequest())).acquisition_lock_timeout_ms == 5
            with pytest.raises(grpc.aio.AioRpcError, match="RuntimeError: a bug") as caught:
                await acknowledge(leader_pb2.ShareAcknowledgeRequest(is_renew_ack=True))
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert leader.errors == ["Leader/ShareAcknowledge: a bug"]

    asyncio.run(main())


def test_any_client_can_speak_frames() -> None:
    async def main() -> None:
        async with scene() as (_, server, _), exchange(server) as stream:
            header = FrameHeader(correlation_id=77, method="Leader/ShareFetch")
            await stream.write(Frame(header_length=header.ByteSize(), header=header).SerializeToString())
            await stream.done_writing()
            answer = Frame.FromString(await stream.read())
            assert (answer.header.correlation_id, answer.header.failure) == (77, "")
            assert leader_pb2.ShareFetchResponse.FromString(answer.header.message).acquisition_lock_timeout_ms == 9
            assert answer.payload == b"onetwo"
            assert await stream.read() is grpc.aio.EOF

    asyncio.run(main())


def test_a_garbled_frame_ends_its_stream_and_no_other() -> None:
    async def main() -> None:
        async with scene() as (_, server, _), exchange(server) as stream:
            mine = GrpcNetwork().connect(server.address)
            await mine.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            await stream.write(b"\x0d\x05\x00\x00\x00\x12\x04\x08\x01\x10\x02")
            with pytest.raises(grpc.aio.AioRpcError, match="header_length says 5 bytes") as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await mine.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            await mine.close()

    asyncio.run(main())


def test_a_message_that_is_none_fails_its_call_only() -> None:
    async def main() -> None:
        async with scene() as (leader, server, _), exchange(server) as stream:
            for correlation_id, message in ((1, b"\xff\xff"), (2, b"")):
                await stream.write(
                    encode_frame(
                        FrameHeader(correlation_id=correlation_id, method="Leader/ShareFetch", message=message)
                    )
                )
            answers = [decode_frame(await stream.read())[0] for _ in range(2)]
            failures = {answer.correlation_id: answer.failure for answer in answers}
            assert failures[1].startswith("the request is not a valid ShareFetchRequest")
            assert failures[2] == ""
            assert leader.errors == []
            stream.cancel()

    asyncio.run(main())


def test_calls_beyond_the_limit_of_a_stream_wait_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CALLS_PER_STREAM_LIMIT", 4)

    async def main() -> None:
        async with scene() as (leader, server, _):
            channel = GrpcNetwork().connect(server.address)
            request = leader_pb2.ShareAcknowledgeRequest()
            calls = [
                asyncio.ensure_future(channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=TIMEOUT_MS))
                for _ in range(10)
            ]
            other = GrpcNetwork().connect(server.address)  # another caller is not held back
            while leader.entered < 4:
                await other.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            for _ in range(20):
                await other.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            assert leader.entered == 4
            leader.go_on.set()
            assert len(await asyncio.gather(*calls)) == 10
            assert leader.entered == 10
            await channel.close()
            await other.close()

    asyncio.run(main())


def test_calls_beyond_the_limit_of_a_channel_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_channel, "CALLS_PER_CHANNEL_LIMIT", 2)

    async def main() -> None:
        async with scene() as (leader, server, _):
            channel = GrpcNetwork().connect(server.address)
            request = leader_pb2.ShareAcknowledgeRequest()
            calls = [channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=TIMEOUT_MS) for _ in range(3)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            with pytest.raises(ChannelUnavailable, match=r"2 calls to .* are already in flight"):
                await tasks[2]
            leader.go_on.set()
            await asyncio.gather(*tasks[:2])
            await channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=TIMEOUT_MS)
            await channel.close()

    asyncio.run(main())


def test_a_call_in_flight_holds_no_copy_of_its_request() -> None:
    """A call may wait long, and its caller has the request anyway."""
    frames = tracemalloc.Filter(True, inspect.getfile(encode_frame))

    async def main() -> None:
        async with scene() as (leader, server, _):
            channel = GrpcNetwork().connect(server.address)
            request = leader_pb2.ShareAcknowledgeRequest()
            request.owner.member_id = "m" * 1_000_000
            calls = [channel.call(SHARE_ACKNOWLEDGE, request, [bytes(1_000_000)], timeout_ms=TIMEOUT_MS)]
            calls.append(channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=TIMEOUT_MS))
            tracemalloc.start()
            tasks = [asyncio.ensure_future(calls[0])]
            while leader.entered < 1:
                await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(calls[1]))  # the first one was sent when the channel was connected
            while leader.entered < 2:
                await asyncio.sleep(0)
            held = tracemalloc.take_snapshot().filter_traces([frames]).traces
            assert sum(trace.size for trace in held) < 100_000
            for call in calls:
                assert not any(isinstance(value, FrameHeader) for value in inspect.getcoroutinelocals(call).values())
            leader.go_on.set()
            await asyncio.gather(*tasks)
            await channel.close()

    try:
        asyncio.run(main())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("address", ["no-port", "127.0.0.1:99999", f"{'a' * 64}.example:9092"])
def test_each_call_to_a_malformed_address_fails_at_once(address: str) -> None:
    """An attempt to connect that ended otherwise would leave all later calls to their timeouts."""

    async def main() -> None:
        channel = GrpcNetwork().connect(address)
        for _ in range(2):
            with pytest.raises(CallNotStarted, match="cannot connect to"):
                await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
        await channel.close()

    asyncio.run(main())


def test_a_call_that_waited_for_a_connection_for_all_its_time_was_not_sent() -> None:
    begun: list[int] = []

    async def main() -> None:
        resolved = asyncio.Event()

        async def look_up(host: str, port: int) -> list[str]:
            await resolved.wait()
            return ["127.0.0.1"]

        async def handle(request: leader_pb2.ShareFetchRequest, payload: memoryview) -> leader_pb2.ShareFetchResponse:
            begun.append(request.max_records)
            return leader_pb2.ShareFetchResponse()

        server = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {SHARE_FETCH: handle})])
        port = server.address.rpartition(":")[2]
        channel = GrpcChannel(f"leader.example:{port}", look_up=look_up)
        with pytest.raises(ConnectTimeout, match=r"no connection to leader\.example") as caught:
            await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(max_records=1), timeout_ms=50)
        assert isinstance(caught.value, CallNotStarted)
        resolved.set()
        await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(max_records=2), timeout_ms=TIMEOUT_MS)
        assert begun == [2], "the first one is not sent late"
        await channel.close()
        await server.stop(0)

    asyncio.run(main())


def test_frames_that_are_too_large_fail_their_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_channel, "FRAME_BYTES_LIMIT", 1_000_000)
    monkeypatch.setattr(call_server, "FRAME_BYTES_LIMIT", 1_000_000)

    async def main() -> None:
        async with scene() as (_, server, _):
            channel = GrpcNetwork().connect(server.address)
            with pytest.raises(CallFailed, match="more than a frame's 1000000"):
                await channel.call(PRODUCE, leader_pb2.ProduceRequest(), [bytes(1_000_000)], timeout_ms=TIMEOUT_MS)
            with pytest.raises(CallFailed, match=r"the answer's 10000\d\d bytes are more"):
                request = leader_pb2.ShareFetchRequest(max_bytes=1_000_000)
                await channel.call(SHARE_FETCH, request, timeout_ms=TIMEOUT_MS)
            request = leader_pb2.ShareFetchRequest(max_bytes=999_000)
            _, payload = await channel.call(SHARE_FETCH, request, timeout_ms=TIMEOUT_MS)
            assert len(payload) == 999_000
            await channel.close()

    asyncio.run(main())


def test_the_largest_frame_passes() -> None:
    async def main() -> None:
        async with scene() as (_, server, _):
            channel = GrpcNetwork().connect(server.address)
            size = FRAME_BYTES_LIMIT - 100
            answer, _ = await channel.call(PRODUCE, leader_pb2.ProduceRequest(), [bytes(size)], timeout_ms=TIMEOUT_MS)
            assert answer.partitions[0].base_offset == size
            await channel.close()

    asyncio.run(main())


def test_a_server_that_starts_later_is_found_soon() -> None:
    async def main(stalls: MachineStalls) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        loop = asyncio.get_running_loop()
        channel = GrpcNetwork().connect(address)
        until = loop.time() + 1  # long enough for gRPC's own back-off to grow to seconds
        while loop.time() < until:
            with pytest.raises(ChannelUnavailable):
                await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
        server = await GrpcNetwork().serve(address, [Leader().service()])
        served_at = loop.time()
        answer = None
        while answer is None:
            try:
                answer, _ = await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            except ChannelUnavailable:
                assert loop.time() - served_at < 1 + stalls.credit_s(served_at, loop.time(), 1)
        await channel.close()
        await server.stop(0)

    with MachineStalls() as stalls:
        asyncio.run(main(stalls))


def test_a_unary_call_under_way_has_the_grace_of_a_stop() -> None:
    async def main() -> None:
        async with scene() as (leader, server, channel):
            acknowledge = unary(channel, "ShareAcknowledge", leader_pb2.ShareAcknowledgeResponse)
            call = asyncio.ensure_future(acknowledge(leader_pb2.ShareAcknowledgeRequest()))
            while not leader.entered:
                await asyncio.sleep(0)
            stop = asyncio.ensure_future(server.stop(TIMEOUT_MS))
            await asyncio.wait([stop], timeout=2 * call_server.FLUSH_AT_STOP_MS / 1000)
            leader.go_on.set()
            assert (await call).acquisition_lock_timeout_ms == 5
            await stop

    asyncio.run(main())


def is_of_a_closed_loop(problem: dict[str, Any]) -> bool:
    """grpcio's poller is one for all loops of a process: it may tell this loop that another test's is closed."""
    return "PollerCompletionQueue._handle_events" in problem["message"] and "Event loop is closed" in repr(
        problem.get("exception")
    )


def test_a_caller_that_has_gone_leaves_its_calls_and_no_errors() -> None:
    async def main() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with scene() as (leader, server, _):
            async with exchange(server) as stream:
                await stream.write(encode_frame(FrameHeader(correlation_id=1, method="Leader/ShareAcknowledge")))
                while not leader.entered:
                    await asyncio.sleep(0)
                stream.cancel()
            stop = asyncio.ensure_future(server.stop(TIMEOUT_MS))
            await asyncio.wait([stop], timeout=0.1)
            assert not stop.done()  # the call still runs
            leader.go_on.set()
            await stop
        gc.collect()
        assert leader.errors == []
        assert [problem for problem in problems if not is_of_a_closed_loop(problem)] == []

    asyncio.run(main())


class Answering:
    """A server whose Exchange stream is the test's own."""

    def __init__(self, serve: Callable[[Any, Any], Awaitable[None]]) -> None:
        self._serve = serve
        self._server = grpc.aio.server()

    async def __aenter__(self) -> str:
        handlers: dict[str, Any] = {"Exchange": grpc.stream_stream_rpc_method_handler(self._serve)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kshare.v1.Leader", handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


def each_frame(answer: Callable[[FrameHeader], bytes]) -> Callable[[Any, Any], Awaitable[None]]:
    """Answers each frame with bytes of the test's choice."""

    async def serve(_: Any, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(answer(decode_frame(data)[0]))

    return serve


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (lambda header: b"garbage", ChannelUnavailable, "the response is not a valid frame"),
        (
            lambda header: encode_frame(FrameHeader(correlation_id=header.correlation_id, message=b"\xff\xff")),
            CallFailed,
            "malformed ShareFetchResponse",
        ),
    ],
)
def test_bad_answers(answer: Callable[[FrameHeader], bytes], kind: type[Exception], text: str) -> None:
    async def main() -> None:
        async with Answering(each_frame(answer)) as address:
            channel = GrpcNetwork().connect(address)
            for _ in range(2):
                with pytest.raises(kind, match=text) as caught:
                    await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
                assert type(caught.value) is kind
            await channel.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE])
def test_a_stream_that_the_other_side_ends_is_opened_again(code: grpc.StatusCode) -> None:
    async def main() -> None:
        streams = 0

        async def serve(_: Any, context: Any) -> None:
            nonlocal streams
            streams += 1
            header, _ = decode_frame(await context.read())
            if streams < 3:
                if code is not grpc.StatusCode.OK:
                    await context.abort(code, "on purpose")
                return
            await context.write(encode_frame(FrameHeader(correlation_id=header.correlation_id)))
            await context.read()

        async with Answering(serve) as address:
            channel = GrpcNetwork().connect(address)
            for _ in range(2):
                with pytest.raises(ChannelUnavailable, match="was lost"):
                    await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            await channel.close()

    asyncio.run(main())


def test_a_response_without_a_waiting_call_is_dropped() -> None:
    def answer(header: FrameHeader) -> bytes:
        correlation_id = header.correlation_id if header.correlation_id % 2 else 999
        return encode_frame(FrameHeader(correlation_id=correlation_id))

    async def main() -> None:
        async with Answering(each_frame(answer)) as address:
            channel = GrpcNetwork().connect(address)
            await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            with pytest.raises(ChannelUnavailable, match="did not respond within 50 ms"):
                await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=50)
            await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
            await channel.close()

    asyncio.run(main())
