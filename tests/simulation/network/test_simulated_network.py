"""The simulated network and connections, with a toy service and a toy gateway."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import LIST_OFFSETS, PRODUCE
from kshare_rpc.network import CallFailed, CallNotStarted, CallTimeout, ChannelUnavailable, Network, Service
from support.simulation.connections import ClientListeners, ConnectionLost
from support.simulation.fault_kinds.clients import MANY_PIECES
from support.simulation.history import History
from support.simulation.hosts import SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.network import STALL_S, SimulatedFabric, SimulatedNetwork


class ToyLeader:
    """Counts what it is asked; answers with its count. A node, as far as hosts care."""

    def __init__(self, network: Network, executed: list[int]) -> None:
        self._network = network
        self.executed = executed

    async def start(self) -> None:
        services = [Service("Leader", {PRODUCE: self._produce})]
        await self._network.serve("leader-1:9000", services)

    async def stop(self, grace_ms: int) -> None: ...

    def problems(self) -> list[str]:
        return []

    async def _produce(self, request: leader_pb2.ProduceRequest, payload: memoryview) -> tuple[Message, list[bytes]]:
        self.executed.append(request.acks)
        if request.acks == 13:
            raise ValueError("thirteen")
        await asyncio.sleep(request.timeout_ms / 1000)
        response = leader_pb2.ProduceResponse()
        response.partitions.add(base_offset=request.acks)
        return response, [b"<", bytes(payload), b">"]


class Toys:
    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop(time_limit=1000)
        self.history = History()
        self.fabric = SimulatedFabric(self.loop, random.Random(seed), self.history)
        self.executed: list[int] = []
        self.host = SimulatedHost(
            "leader-1",
            seed=str(seed),
            fabric=self.fabric,
            listeners=ClientListeners(self.fabric),
            build=lambda environment, network, host: ToyLeader(network, self.executed),
        )
        self.caller = SimulatedNetwork(self.fabric, Incarnation("gateway-1", 1))
        self.channel = self.caller.connect("leader-1:9000")

    async def produce(self, number: int, *, work_ms: int = 0, timeout_ms: int = 1000) -> tuple[int, bytes]:
        request = leader_pb2.ProduceRequest(acks=number, timeout_ms=work_ms)
        answer, payload = await self.channel.call(PRODUCE, request, [b"a", b"b"], timeout_ms=timeout_ms)
        return answer.partitions[0].base_offset, bytes(payload)


def run(scenario: Callable[[Toys], Awaitable[None]], seed: int = 1) -> Toys:
    toys = Toys(seed)

    async def main() -> None:
        await toys.host.start()
        await scenario(toys)

    toys.loop.run(main())
    assert toys.loop.problems == []
    return toys


def test_a_call_is_answered_and_time_passes() -> None:
    async def scenario(toys: Toys) -> None:
        assert await toys.produce(7) == (7, b"<ab>")
        assert 0 < toys.loop.time() < 0.01

    run(scenario)


def test_calls_of_one_channel_start_in_order() -> None:
    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.slow_probability = 0.5
        toys.fabric.conditions.slow_latency = 0.2
        await asyncio.gather(*(toys.produce(number) for number in range(14, 50)))
        assert toys.executed == list(range(14, 50))

    run(scenario)


def test_handlers_run_side_by_side() -> None:
    async def scenario(toys: Toys) -> None:
        await asyncio.gather(*(toys.produce(number, work_ms=500) for number in range(14, 24)))
        assert toys.loop.time() < 0.6

    run(scenario)


def test_failures_that_a_caller_can_see() -> None:
    async def scenario(toys: Toys) -> None:
        with pytest.raises(CallTimeout):
            await toys.produce(1, work_ms=2000)
        assert toys.executed == [1]
        with pytest.raises(CallFailed, match="thirteen"):
            await toys.produce(13)
        with pytest.raises(CallFailed, match="does not know"):
            await toys.channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=100)
        toys.fabric.block("leader-1", "gateway-1")
        with pytest.raises(CallTimeout):
            await toys.produce(2)
        assert toys.executed == [1, 13, 2], "the request was executed, only its answer was lost"
        toys.fabric.block("gateway-1", "leader-1")
        toys.fabric.unblock("leader-1", "gateway-1")
        with pytest.raises(CallTimeout):
            await toys.produce(3)
        toys.fabric.unblock("gateway-1", "leader-1")
        await asyncio.sleep(STALL_S)
        with pytest.raises(ChannelUnavailable, match="broke behind lost bytes"):
            await toys.produce(4)
        assert (await toys.produce(5))[0] == 5

    toys = run(scenario)
    assert len(toys.fabric.bugs) == 1 and "thirteen" in toys.fabric.bugs[0]


def test_nothing_gets_past_lost_bytes_on_a_stream() -> None:
    """Seed 1128600149: a producer's second batch arrived, and its first was lost before it on the stream."""

    async def scenario(toys: Toys) -> None:
        toys.fabric.block("gateway-1", "leader-1")
        lost = asyncio.ensure_future(toys.produce(1, timeout_ms=60_000))
        await asyncio.sleep(0.1)
        toys.fabric.unblock("gateway-1", "leader-1")
        await asyncio.sleep(STALL_S)
        assert not lost.done()
        behind = asyncio.ensure_future(toys.produce(2))
        for call in (lost, behind):
            with pytest.raises(ChannelUnavailable, match="broke behind lost bytes"):
                await call
        assert (await toys.produce(3))[0] == 3 and toys.executed == [3]

    run(scenario)


@pytest.mark.parametrize("silent", [False, True])
def test_a_crash_fails_calls_and_a_new_life_answers(silent: bool) -> None:
    async def scenario(toys: Toys) -> None:
        toys.loop.call_later(0.1, lambda: toys.host.crash(silent=silent))
        with pytest.raises(ChannelUnavailable) as caught:
            await toys.produce(1, work_ms=500)
        assert isinstance(caught.value, CallTimeout) == silent
        with pytest.raises(CallNotStarted, match="nobody listens"):
            await toys.produce(2)
        await toys.host.start()
        assert (await toys.produce(3))[0] == 3

    run(scenario)


def test_a_cut_stream_may_still_deliver_what_was_under_way() -> None:
    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.latency = 0.2
        toys.loop.call_later(0.05, toys.fabric.cut, "gateway-1", "leader-1")
        with pytest.raises(ChannelUnavailable, match="was cut"):
            await toys.produce(1)
        assert toys.executed == []
        await asyncio.sleep(1)
        assert toys.executed == [1]

    run(scenario)


def test_what_was_sent_to_one_life_of_a_host_is_not_read_by_the_next() -> None:
    """Seed 811270110: an EndTxn that lay in a connection of a coordinator's last life ended the next transaction."""

    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.latency = 1.0
        call = asyncio.ensure_future(toys.produce(1, timeout_ms=10_000))
        await asyncio.sleep(0.1)
        toys.host.crash(silent=True)
        await toys.host.start()
        with pytest.raises(ChannelUnavailable, match="closed the connection"):
            await call
        assert toys.executed == []
        assert (await toys.produce(2, timeout_ms=10_000))[0] == 2

    run(scenario)


def test_a_full_link_loses_nothing_and_delivers_late_and_in_order() -> None:
    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.full_until["gateway-1", "leader-1"] = 20.0
        given_up = [asyncio.ensure_future(toys.produce(number)) for number in range(14, 24)]
        await asyncio.wait(given_up)
        assert all(isinstance(call.exception(), CallTimeout) for call in given_up) and toys.executed == []
        await asyncio.sleep(20)
        assert toys.executed == list(range(14, 24)), "executed long after their caller gave up"
        assert toys.fabric.delayed_count["full-link"] == 10

    run(scenario)


def test_a_reset_stream_executes_requests_whose_callers_see_a_failure_but_none_after_the_next_streams_calls() -> None:
    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.reset_probability = 1.0
        numbers = range(100, 200)
        failed = []
        for number in numbers:
            try:
                await toys.produce(number, work_ms=5)
            except ChannelUnavailable:
                failed.append(number)
        toys.fabric.conditions.reset_probability = 0.0
        await asyncio.sleep(10)
        assert toys.executed == sorted(set(toys.executed)), "each once at most, and none behind a newer stream's call"
        assert set(numbers) - set(failed) <= set(toys.executed)
        assert 20 < len(failed) < 100 and toys.fabric.reset_count == len(failed)
        executed = set(failed) & set(toys.executed)
        assert 0 < len(executed) < len(failed), "some arrived before the next stream did"

    run(scenario)


def test_what_a_handler_gets_is_not_the_callers_object() -> None:
    async def scenario(toys: Toys) -> None:
        request = leader_pb2.ProduceRequest(acks=5, timeout_ms=10)
        call = asyncio.ensure_future(toys.channel.call(PRODUCE, request, timeout_ms=1000))
        await asyncio.sleep(0)
        request.acks = 6
        answer, _ = await call
        assert answer.partitions[0].base_offset == 5

    run(scenario)


def test_one_seed_gives_one_history() -> None:
    async def scenario(toys: Toys) -> None:
        toys.fabric.conditions.drop_probability = 0.3
        toys.fabric.conditions.slow_probability = 0.3
        toys.fabric.conditions.slow_latency = 0.3
        await asyncio.gather(*(toys.produce(number) for number in range(20, 60)), return_exceptions=True)

    digests = [run(scenario, seed).history.digest() for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


class EchoProtocol(asyncio.Protocol):
    """Answers every frame with itself; closes on b'close' after the correlation id."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 4 and len(self.buffer) >= 4 + struct.unpack(">i", self.buffer[:4])[0]:
            length = 4 + struct.unpack(">i", self.buffer[:4])[0]
            frame, self.buffer = self.buffer[:length], self.buffer[length:]
            if frame[8:] == b"close":
                self.transport.close()
            self.transport.write(frame)

    def pause_writing(self) -> None:
        self.events.append("full")

    def resume_writing(self) -> None:
        self.events.append("drained")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")


def run_echo(scenario: Callable[[ClientListeners, Incarnation, list[str]], Awaitable[Any]]) -> list[str]:
    loop = VirtualLoop(time_limit=1000)
    fabric = SimulatedFabric(loop, random.Random(3), History())
    listeners = ClientListeners(fabric)
    events: list[str] = []
    gateway = Incarnation("gateway-1", 1)

    async def main() -> None:
        listeners.listen("gateway-1:9092", gateway, lambda: EchoProtocol(events))
        await scenario(listeners, gateway, events)
        await asyncio.sleep(30)

    loop.run(main())
    assert loop.problems == [] and fabric.bugs == []
    return events


def frame_of(number: int, text: bytes) -> bytes:
    return struct.pack(">i", number) + text


def test_frames_arrive_whole_and_in_order() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        futures = [connection.send(number, frame_of(number, b"x" * number)) for number in range(300)]
        assert [await future for future in futures] == [frame_of(number, b"x" * number) for number in range(300)]
        connection.close()

    assert run_echo(scenario) == ["made", "lost NoneType"]


def test_a_cut_connection_is_lost_at_both_ends() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        answer = connection.send(1, frame_of(1, b"x"))
        connection.cut()
        with pytest.raises(ConnectionLost):
            await answer

    assert run_echo(scenario) == ["made", "lost ConnectionResetError"]


def test_the_gateway_may_close() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        with pytest.raises(ConnectionLost):
            await connection.send(1, frame_of(1, b"close"))

    assert run_echo(scenario) == ["made", "lost NoneType"]


def test_a_dead_gateway_is_gone_for_its_clients() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        await asyncio.sleep(0.1)
        gateway.dead = True
        listeners.host_died(gateway, silent=True)
        with pytest.raises(ConnectionLost):
            await connection.send(1, frame_of(1, b"x"))
        with pytest.raises(ConnectionLost, match="nobody listens"):
            await listeners.connect("client-1", "gateway-1:9092")

    assert run_echo(scenario) == ["made"]


def test_a_client_that_does_not_read_fills_the_buffers_and_then_gets_all_of_it() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        connection.stop_reading()
        futures = [connection.send(number, frame_of(number, b"x" * 100)) for number in range(40)]
        await asyncio.sleep(20)
        assert events == ["made", "full"] and not any(future.done() for future in futures)
        listeners.heal()
        assert [await future for future in futures] == [frame_of(number, b"x" * 100) for number in range(40)]
        connection.close()

    assert run_echo(scenario) == ["made", "full", "drained", "lost NoneType"]


def test_a_client_that_vanishes_is_noticed_much_later() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        await asyncio.sleep(0.1)
        answer = connection.send(1, frame_of(1, b"x"))
        connection.vanish(12.0)
        with pytest.raises(ConnectionLost):
            await answer
        again = await listeners.connect("client-1", "gateway-1:9092")
        assert await again.send(1, frame_of(1, b"y")) == frame_of(1, b"y")
        await asyncio.sleep(10)
        assert events == ["made", "made"]

    assert run_echo(scenario) == ["made", "made", "lost ConnectionResetError"]


def test_a_half_closed_connection_delivers_what_was_sent_before_and_no_more() -> None:
    async def scenario(listeners: ClientListeners, gateway: Incarnation, events: list[str]) -> None:
        connection = await listeners.connect("client-1", "gateway-1:9092")
        answer = connection.send(1, frame_of(1, b"x"))
        connection.close_half()
        with pytest.raises(ConnectionLost):
            await connection.send(2, frame_of(2, b"x"))
        assert await answer == frame_of(1, b"x")

    assert run_echo(scenario) == ["made", "lost NoneType"]


def test_bytes_arrive_in_many_pieces() -> None:
    pieces: list[bytes] = []

    class Pieces(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            pieces.append(data)

    loop = VirtualLoop(time_limit=1000)
    fabric = SimulatedFabric(loop, random.Random(3), History())
    listeners = ClientListeners(fabric)
    fabric.conditions.pieces = MANY_PIECES

    async def main() -> None:
        listeners.listen("gateway-1:9092", Incarnation("gateway-1", 1), Pieces)
        connection = await listeners.connect("client-1", "gateway-1:9092")
        sent = connection.send(1, bytes(range(200)))
        await asyncio.sleep(5)
        assert not sent.done()

    loop.run(main())
    assert len(pieces) == MANY_PIECES[1] and b"".join(pieces) == b"\0\0\0\xc8" + bytes(range(200))
