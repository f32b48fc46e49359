"""The statistics of calls between roles: over gRPC streams, in unary form, and within a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc.aio
import pytest

from kshare_core.tracing import Attributes, Span, Tracer, current_traceparent
from kshare_rpc.call_statistics import HANDLER_FAILED, CallStatistics
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH, LIST_OFFSETS, PRODUCE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import CallFailed, CallNotStarted, CallTimeout, Server, Service

WAIT_S = 0.15
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
AnyNetwork = GrpcNetwork | InProcessNetwork


async def fetch(request: leader_pb2.FetchRequest, payload: memoryview) -> leader_pb2.FetchResponse:
    await asyncio.sleep(WAIT_S)
    return leader_pb2.FetchResponse()


async def broken(request: Any, payload: memoryview) -> Any:
    raise RuntimeError("a bug")


def ignored(path: str, error: BaseException) -> None:
    """Handlers fail on purpose."""


def play(
    kind: type[AnyNetwork],
    test: Callable[[AnyNetwork, CallStatistics, str], Awaitable[None]],
    tracer: Tracer | None = None,
) -> None:
    async def whole() -> None:
        statistics = CallStatistics(asyncio.get_running_loop().time)
        service = Service("Leader", {FETCH: fetch, LIST_OFFSETS: broken})
        network: AnyNetwork
        if kind is GrpcNetwork:
            network = GrpcNetwork(on_handler_error=ignored, statistics=statistics, tracer=tracer)
            server: Server = await network.serve("127.0.0.1:0", [service])
        else:
            network = InProcessNetwork(on_handler_error=ignored, statistics=statistics)
            server = await network.serve("127.0.0.1:0", [service], tracer)
        await test(network, statistics, server.address)
        await server.stop(1_000)

    asyncio.run(whole())


@pytest.mark.parametrize("kind", [GrpcNetwork, InProcessNetwork])
def test_durations_and_calls_under_way_on_both_sides(kind: type[AnyNetwork]) -> None:
    async def test(network: AnyNetwork, statistics: CallStatistics, address: str) -> None:
        channel = network.connect(address)
        began = time.monotonic()
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
        call = asyncio.ensure_future(channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000))
        await asyncio.sleep(WAIT_S / 3)
        assert statistics.made["Leader/Fetch"].under_way == statistics.served["Leader/Fetch"].under_way == 1
        await call
        for side in (statistics.made, statistics.served):
            assert side["Leader/Fetch"].durations.count == 2
            assert 2 * WAIT_S - 0.02 <= side["Leader/Fetch"].durations.total <= time.monotonic() - began
            assert side["Leader/Fetch"].under_way == 0
        assert statistics.made["Leader/Fetch"].failures == {}
        assert statistics.served["Leader/Fetch"].failures == {HANDLER_FAILED: 0}, "its counter begins before a failure"
        await channel.close()

    play(kind, test)


class NamedSpan:
    """A span of a known trace, which is recorded nowhere."""

    traceparent = f"00-{TRACE}-{'2' * 16}-01"

    def add(self, attributes: Attributes) -> None: ...

    def link(self, traceparents: Sequence[str]) -> None: ...

    def end(self, problem: str = "") -> None: ...


class AlwaysSampled:
    def begin(self, name: str, attributes: Attributes, *, parent: str = "", links: Sequence[str] = ()) -> Span:
        return NamedSpan()


@pytest.mark.parametrize("kind", [GrpcNetwork, InProcessNetwork])
def test_a_call_in_a_recorded_trace_is_an_exemplar_of_its_duration(kind: type[AnyNetwork]) -> None:
    async def test(network: AnyNetwork, statistics: CallStatistics, address: str) -> None:
        channel = network.connect(address)
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
        served = statistics.served["Leader/Fetch"].durations
        assert served.exemplars == {}, "no trace, no exemplar"
        current_traceparent.set(f"00-{TRACE}-{'1' * 16}-01")
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
        ((index, exemplar),) = served.exemplars.items()
        assert exemplar.trace_id == TRACE
        assert served.bounds[index - 1] < exemplar.value <= served.bounds[index]
        assert served.counts[index] >= 1
        await channel.close()

    play(kind, test, AlwaysSampled())


@pytest.mark.parametrize("kind", [GrpcNetwork, InProcessNetwork])
def test_failures_by_what_is_known_of_the_call(kind: type[AnyNetwork]) -> None:
    async def test(network: AnyNetwork, statistics: CallStatistics, address: str) -> None:
        channel, nobody = network.connect(address), network.connect("127.0.0.1:1")
        with pytest.raises(CallFailed):
            await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=10_000)
        with pytest.raises(CallTimeout):
            await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=20)
        with pytest.raises(CallFailed):
            await channel.call(PRODUCE, leader_pb2.ProduceRequest(), timeout_ms=10_000)
        assert statistics.made["Leader/ListOffsets"].failures == {"CallFailed": 1}
        assert statistics.served["Leader/ListOffsets"].failures == {HANDLER_FAILED: 1}
        assert statistics.made["Leader/Fetch"].failures == {"CallTimeout": 1}
        assert "Leader/Produce" not in statistics.served  # nobody can invent methods
        if isinstance(network, GrpcNetwork):
            with pytest.raises(CallNotStarted):
                await nobody.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
            assert statistics.made["Leader/Fetch"].failures == {"CallTimeout": 1, "CallNotStarted": 1}
        await asyncio.sleep(WAIT_S)
        await channel.close()
        await nobody.close()

    play(kind, test)


def test_unary_calls_of_probes_and_people_count_at_the_server() -> None:
    async def test(network: AnyNetwork, statistics: CallStatistics, address: str) -> None:
        assert isinstance(network, GrpcNetwork)
        async with grpc.aio.insecure_channel(network.operations_address or "") as channel:
            call: Any = channel.unary_unary(
                "/kshare.v1.Leader/Fetch",
                request_serializer=leader_pb2.FetchRequest.SerializeToString,
                response_deserializer=leader_pb2.FetchResponse.FromString,
            )
            await call(leader_pb2.FetchRequest())
        assert statistics.served["Leader/Fetch"].durations.count == 1
        assert statistics.served["Leader/Fetch"].under_way == 0
        assert statistics.made == {}

    play(GrpcNetwork, test)
