"""The network between roles: seeded delays, lost messages, cuts and partitions; messages travel as bytes.

Calls of one channel to one address arrive in the order in which they were sent, as on one Exchange stream, and their
handlers run side by side. Nothing gets past lost bytes on a stream, as on TCP: the caller of a lost request or answer
sees a timeout, or that the stream broke, which the next message that could pass finds. When a host dies or a link is
cut, calls under way fail at once or (seeded) only by their timeout; requests that were under way on a cut stream may
still arrive later, in their order, which is what epochs and sequences have to stand.

Roles talk in unary calls over HTTP/2 streams on TCP (`kshare_rpc`), and the simulation injects what these allow:

- TCP delivers the bytes of one connection at most once and in order, or breaks. No message of a stream is duplicated or
  overtaken; messages of different streams, also of the next stream between the same hosts, arrive in any order.
- A call is executed at most once for each time that its caller sends it. A caller that saw a failure or timeout does
  not know whether it was executed; a handler runs twice for one request only if the caller sends it again.
- The handler of a call whose caller has given up runs on, or begins much later: when a link was full, or when the bytes
  lay in a buffer of the receiver. A connection ends with the process at either end, so what was sent to one life of a
  host is never read by the next one.
- A link that is full (a receiver that does not read, a partition shorter than TCP's patience) loses nothing: what was
  sent arrives late, all at once and in order.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from kshare_rpc.call_server import FLUSH_AT_STOP_MS
from kshare_rpc.network import (
    CallFailed,
    CallNotStarted,
    CallTimeout,
    ChannelUnavailable,
    Handler,
    Method,
    Payload,
    Request,
    Response,
    Service,
)
from support.simulation.history import History, Note
from support.simulation.loop import Incarnation, VirtualLoop, time_of
from support.simulation.rules.unexpected import is_expected

Tap = Callable[[str, str, Method[Any, Any], Message, "Message | None", float], None]
"""Called with source host, target host, method, request, answer and the time of sending: with the answer None when the
request arrives, and again when the handler has answered."""

CallTap = Callable[["SimulatedCall", Any, "Message | None"], None]
"""As a Tap, with the call itself: it knows which life of a host sent it, and which one answers."""
AnswerTap = Callable[["SimulatedCall", bytes], None]
"""Called when an answer reaches its caller."""
EndTap = Callable[["SimulatedCall", "CallFailed"], None]
"""Called when a caller learns that its call failed."""

FIRST_PORT = 30_000
LINGER_PROBABILITY = 0.5
LINGER_S = 5.0
RESETS_WITHIN_S = (0.001, 0.02, 0.5)
"""A reset comes while the request is under way, while its handler runs, or with its answer under way."""
STALL_S = 2.0
"""How long a stream stands still at most behind something that was lost."""


@dataclass(slots=True)
class Conditions:
    """How the network is at the moment; times in seconds."""

    latency: float = 0.0005
    slow_probability: float = 0.0
    slow_latency: float = 0.0
    drop_probability: float = 0.0
    host_latency: dict[str, float] = field(default_factory=dict)
    """At most so much is added to each message from or to the host."""
    link_latency: dict[tuple[str, str], float] = field(default_factory=dict)
    """The same for messages from the first host to the second."""
    full_until: dict[tuple[str, str], float] = field(default_factory=dict)
    """Until when nothing gets through from the first host to the second; then all of it does, in order."""
    reset_probability: float = 0.0
    """Of each call: that its stream breaks while the call is under way."""
    pieces: tuple[float, int] = (0.1, 2)
    """How often bytes of a connection arrive in pieces, and in how many at most."""


class SimulatedFabric:
    """All hosts and links. One for each simulation."""

    def __init__(self, loop: VirtualLoop, randomness: random.Random, history: History) -> None:
        self.loop = loop
        self.random = randomness
        self.history = history
        self.conditions = Conditions()
        self.taps: list[Tap] = []
        self.call_taps: list[CallTap] = []
        self.answer_taps: list[AnswerTap] = []
        self.end_taps: list[EndTap] = []
        self.bugs: list[str] = []
        """Exceptions that left a handler without being one that callers expect."""
        self.blocked_count: Counter[tuple[str, str]] = Counter()
        """Messages that a block held up, by link."""
        self.delayed_count: Counter[str] = Counter()
        """Messages that the faults slow-network, slow-host and full-link delayed, and pieces of small-pieces."""
        self.slowed_count: Counter[tuple[str, str]] = Counter()
        """Messages that took longer because their link was slow (`Conditions.link_latency`), by link."""
        self.dropped_count = 0
        self.cut_count = 0
        """Calls that failed, and connections that were lost, because of a cut between two hosts."""
        self.reset_count = 0
        """Calls that failed because their streams broke by themselves."""
        self._blocked: dict[tuple[str, str], int] = {}
        self._listeners: dict[str, tuple[Incarnation, dict[str, tuple[Method[Any, Any], Handler]]]] = {}
        self._calls: dict[int, SimulatedCall] = {}
        self._call_count = 0
        self._next_port = FIRST_PORT

    # Links

    def block(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more; blocks are counted."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1

    def unblock(self, source: str, target: str) -> None:
        self._blocked[source, target] -= 1
        if not self._blocked[source, target]:
            del self._blocked[source, target]

    def heal(self) -> None:
        """Every link works, as fast as at the start."""
        self._blocked.clear()
        self.conditions = Conditions()

    def is_blocked(self, source: str, target: str) -> bool:
        is_blocked = (source, target) in self._blocked
        self.blocked_count[source, target] += is_blocked
        return is_blocked

    def delay(self, source: str, target: str) -> float:
        """The seconds that one message takes."""
        conditions, draw = self.conditions, self.random.random
        seconds = conditions.latency * (0.5 + draw())
        if conditions.slow_probability and draw() < conditions.slow_probability:
            seconds += conditions.slow_latency * draw()
            self.delayed_count["slow-network"] += 1
        if conditions.host_latency:
            most_s = conditions.host_latency.get(source, 0.0) + conditions.host_latency.get(target, 0.0)
            seconds += draw() * most_s
            self.delayed_count["slow-host"] += most_s > 0
        if conditions.link_latency:
            most_s = conditions.link_latency.get((source, target), 0.0)
            seconds += draw() * most_s
            self.slowed_count[source, target] += most_s > 0
        if conditions.full_until:
            left_s = conditions.full_until.get((source, target), 0.0) - self.loop.now_s
            self.delayed_count["full-link"] += left_s > 0
            seconds += max(0.0, left_s)
        return seconds

    def is_lost(self, source: str, target: str) -> bool:
        if self.is_blocked(source, target):
            return True
        probability = self.conditions.drop_probability
        is_dropped = probability > 0 and self.random.random() < probability
        self.dropped_count += is_dropped
        return is_dropped

    def cut(self, first: str, second: str) -> None:
        """Breaks the streams between two hosts: calls under way fail; their requests may still arrive."""
        between = [call for call in self._calls.values() if {call.source.host, call.target_host} == {first, second}]
        for stream in dict.fromkeys(call.stream for call in between):
            stream.number += 1
        for call in between:
            if call.call_id in self._calls:
                call.linger()
                call.fail(ChannelUnavailable(f"the stream between {first} and {second} was cut"))
                self.cut_count += 1

    def reset(self, stream: _Stream, address: str) -> None:
        """Breaks one stream, as `cut` breaks all between two hosts; the next call makes another."""
        self.reset_count += self.end_calls(stream, address, "was reset")

    def end_calls(self, stream: _Stream, address: str, reason: str) -> int:
        """The stream is gone: its calls fail, though their requests may still arrive; how many they were."""
        stream.number += 1
        calls = [call for call in self._calls.values() if call.stream is stream and call.address == address]
        for call in calls:
            call.linger()
            call.fail(ChannelUnavailable(f"the stream to {address} {reason}"))
        return len(calls)

    def host_died(self, incarnation: Incarnation, *, silent: bool) -> None:
        """The host's listeners are gone. Calls to it fail now, or (`silent`) only by their timeouts."""
        for address, (owner, _) in list(self._listeners.items()):
            if owner is incarnation:
                del self._listeners[address]
        for call in list(self._calls.values()):
            if call.source is incarnation:
                call.linger()
                call.forget()
            elif call.executor is incarnation and not silent:
                call.fail(ChannelUnavailable(f"{incarnation.host} closed the stream"))

    # Calls

    def listen(self, address: str, incarnation: Incarnation, services: Sequence[Service]) -> str:
        host, port = address.rsplit(":", 1)
        if port == "0":
            self._next_port += 1
            address = f"{host}:{self._next_port}"
        if address in self._listeners:
            raise OSError(f"{address} is in use by {self._listeners[address][0]!r}")
        handlers = {
            method.path: (method, handler) for service in services for method, handler in service.handlers.items()
        }
        self._listeners[address] = (incarnation, handlers)
        return address

    def unlisten(self, address: str, incarnation: Incarnation) -> None:
        if address in self._listeners and self._listeners[address][0] is incarnation:
            del self._listeners[address]

    def start_call(
        self, stream: _Stream, address: str, method: Method[Any, Any], request: bytes, payload: bytes, timeout_ms: int
    ) -> asyncio.Future[tuple[bytes, bytes]]:
        self._call_count += 1
        call = SimulatedCall(self, self._call_count, stream, address, method, request, payload)
        self._calls[call.call_id] = call
        call.send(timeout_ms)
        probability = self.conditions.reset_probability
        if probability and self.random.random() < probability:
            within_s = self.random.choice(RESETS_WITHIN_S) * self.random.random()
            in_no_host(self.loop, self.loop.now_s + within_s, self.reset, stream, address)
        return call.answer

    def executing(self, incarnation: Incarnation) -> list[asyncio.Task[None]]:
        """The handlers that run in the host now."""
        calls = [call for call in self._calls.values() if call.executor is incarnation]
        return [call.task for call in calls if call.task is not None and not call.task.done()]

    def is_answering(self, incarnation: Incarnation) -> bool:
        """Whether an answer of the host is under way."""
        return any(call.executor is incarnation and call.is_answered for call in self._calls.values())

    def end_call(self, call_id: int) -> None:
        self._calls.pop(call_id, None)

    def find(self, address: str, path: str) -> tuple[Incarnation, tuple[Method[Any, Any], Handler] | None] | None:
        """Who listens there, and its handler of the method (None: it does not know the method)."""
        listener = self._listeners.get(address)
        return None if listener is None else (listener[0], listener[1].get(path))

    def note(self, text: str) -> None:
        self.history.add(Note(self.loop.now_s, text))


class _Stream:
    """Order on one channel: what is sent later does not arrive earlier, and not at all where it gets stuck."""

    def __init__(self, source: Incarnation) -> None:
        self.source = source
        self.request_arrival = 0.0
        self.answer_arrival = 0.0
        self._stalled_until = [0.0, 0.0]
        self._has_lost = [False, False]
        self.number = 1
        """It grows when the stream breaks: the channel's next calls are sent on another."""
        self.newest_arrived = 0
        """What a server knows of the channel's streams (`kshare_rpc.exchange.caller_streams`)."""
        self._cut_at = -1.0
        self._linger_s = 0.0

    def loses(self, call: SimulatedCall, source: str, target: str, *, answer: bool) -> bool:
        """Whether what is sent now is lost: itself, behind another that was, or as the stream breaks for that reason.

        Bytes behind lost ones never arrive without them. So the first message after the stall finds the stream broken:
        all its calls fail before another stream is made, which is the rule that order between calls relies on.
        """
        fabric = call.fabric
        now = fabric.loop.now_s
        if now < self._stalled_until[answer]:
            return True
        if fabric.is_lost(source, target):
            self._stalled_until[answer] = now + STALL_S * fabric.random.random()
            self._has_lost[answer] = True
            return True
        if not self._has_lost[answer]:
            return False
        self._stalled_until, self._has_lost = [now, now], [False, False]
        fabric.end_calls(self, call.address, "broke behind lost bytes")
        return True

    def linger_s(self, fabric: SimulatedFabric) -> float:
        """How much later all arrives that was under way when the stream was cut, which is now."""
        if self._cut_at != fabric.loop.now_s:
            self._cut_at = fabric.loop.now_s
            draw = fabric.random.random
            self._linger_s = draw() * LINGER_S if draw() < LINGER_PROBABILITY else 0.0
        return self._linger_s


class SimulatedCall:
    """One call from its start to its answer; see the module's text."""

    def __init__(
        self,
        fabric: SimulatedFabric,
        call_id: int,
        stream: _Stream,
        address: str,
        method: Method[Any, Any],
        request: bytes,
        payload: bytes,
    ) -> None:
        self.fabric = fabric
        self.call_id = call_id
        self.stream = stream
        self.stream_number = stream.number
        self.source = stream.source
        self.address = address
        self.target_host = address.rsplit(":", 1)[0]
        self.method = method
        self.request = request
        self.payload = payload
        self.sent_at = fabric.loop.now_s
        self.arrived_at = -1.0
        self.connected_to: Incarnation | None = None
        """The process that listened when it was sent; None: there was none, and the bytes wait with the caller."""
        self.executor: Incarnation | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_answered = False
        """Whether its answer is under way and will arrive, if its host lives."""
        self.answer: asyncio.Future[tuple[bytes, bytes]] = fabric.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._arrival: asyncio.TimerHandle | None = None

    def send(self, timeout_ms: int) -> None:
        fabric, source, target = self.fabric, self.source.host, self.target_host
        loop = fabric.loop
        self._timer = loop.call_later(
            timeout_ms / 1000, self.fail, CallTimeout(f"no answer of {self.address} in {timeout_ms} ms")
        )
        stream = self.stream
        listener = fabric.find(self.address, self.method.path)
        self.connected_to = None if listener is None else listener[0]
        if stream.loses(self, source, target, answer=False):
            fabric.note(f"{source} -> {target} {self.method.path} [{self.call_id}] lost")
            return
        stream.request_arrival = later(stream.request_arrival, loop.now_s + fabric.delay(source, target))
        self._arrival = in_no_host(loop, stream.request_arrival, self._arrive)

    def linger(self) -> None:
        """The stream is gone; a request that is still under way may be read from a buffer much later."""
        loop = self.fabric.loop
        if self._arrival is not None and time_of(self._arrival) > loop.now_s:
            self._arrival.cancel()
            self._arrival = in_no_host(loop, time_of(self._arrival) + self.stream.linger_s(self.fabric), self._arrive)

    def _arrive(self) -> None:
        fabric, source, target = self.fabric, self.source.host, self.target_host
        found = None if fabric.is_blocked(source, target) else fabric.find(self.address, self.method.path)
        if fabric.is_blocked(source, target):
            return
        if found is None:
            kind = CallNotStarted if self.connected_to is None else ChannelUnavailable
            self._fail_later(kind(f"nobody listens at {self.address}"))
            return
        executor, entry = found
        if self._is_of_another_connection(executor):
            self._fail_later(ChannelUnavailable(f"{self.address} closed the connection"))
            return
        if self.stream_number < self.stream.newest_arrived:
            fabric.note(f"{source} -> {target} {self.method.path} [{self.call_id}] too late: it has a newer stream")
            return
        self.stream.newest_arrived = self.stream_number
        if entry is None:
            self._fail_later(CallFailed(f"{self.address} does not know {self.method.path}"))
            return
        fabric.note(f"{source} -> {target} {self.method.path} [{self.call_id}]")
        self.executor = executor
        name = f"{executor.host}:{self.method.path}:{self.call_id}"
        self.task = fabric.loop.task_in(executor, self._execute(entry[1]), name)

    @property
    def is_given_up(self) -> bool:
        """Whether its caller no longer waits for it, or has died."""
        return self.call_id not in self.fabric._calls

    def _is_of_another_connection(self, executor: Incarnation) -> bool:
        """Whether the bytes went to an earlier process of the host, or never left a caller that has given up."""
        if self.connected_to is None:
            return self.is_given_up
        return self.connected_to is not executor

    async def _execute(self, handler: Handler) -> None:
        """Runs in the other host."""
        fabric = self.fabric
        self.arrived_at = fabric.loop.now_s
        request = self.method.request_type.FromString(self.request)
        for tap in fabric.taps:
            tap(self.source.host, self.target_host, self.method, request, None, self.sent_at)
        for call_tap in fabric.call_taps:
            call_tap(self, request, None)
        try:
            answered = await handler(request, memoryview(self.payload))
        except Exception as error:
            if fabric.loop.is_closed():
                raise  # the simulation is over, and this coroutine is only unwound
            if not is_expected(error, self.executor, fabric.history):
                fabric.bugs.append(f"at {fabric.loop.now_s:.3f} s {self.target_host} {self.method.path}: {error!r}")
            self._fail_later(CallFailed(f"{self.method.path}: {error!r}"))
            return
        response, payload = answered if isinstance(answered, tuple) else (answered, ())
        for tap in fabric.taps:
            tap(self.source.host, self.target_host, self.method, request, response, self.sent_at)
        for call_tap in fabric.call_taps:
            call_tap(self, request, response)
        self._answer(response.SerializeToString(), b"".join(payload))

    def _answer(self, response: bytes, payload: bytes) -> None:
        fabric, source, target = self.fabric, self.source.host, self.target_host
        stream = self.stream
        if stream.loses(self, target, source, answer=True):
            fabric.note(f"{target} -> {source} answer [{self.call_id}] lost")
            return
        stream.answer_arrival = later(stream.answer_arrival, fabric.loop.now_s + fabric.delay(target, source))
        self.is_answered = True
        in_no_host(fabric.loop, stream.answer_arrival, self._deliver, response, payload)

    def _deliver(self, response: bytes, payload: bytes) -> None:
        fabric, source, target = self.fabric, self.source.host, self.target_host
        if fabric.is_blocked(target, source) or self.call_id not in fabric._calls:
            return
        fabric.note(f"{target} -> {source} answer [{self.call_id}] {len(response)}+{len(payload)} bytes")
        self.forget()
        for tap in fabric.answer_taps:
            tap(self, response)
        if not self.answer.done():
            self.answer.set_result((response, payload))

    def _fail_later(self, error: CallFailed) -> None:
        fabric = self.fabric
        if not fabric.is_lost(self.target_host, self.source.host):
            arrival = fabric.loop.now_s + fabric.delay(self.target_host, self.source.host)
            in_no_host(fabric.loop, arrival, self.fail, error)

    def fail(self, error: CallFailed) -> None:
        if self.call_id not in self.fabric._calls:
            return
        self.fabric.note(f"{self.source.host} {self.method.path} [{self.call_id}] failed: {error}")
        self.forget()
        for tap in self.fabric.end_taps:
            tap(self, error)
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # seen: a caller that dies at the same moment never looks

    def forget(self) -> None:
        self.fabric.end_call(self.call_id)
        if self._timer is not None:
            self._timer.cancel()


class SimulatedNetwork:
    """The network as one life of a host sees it (`kshare_rpc.network.Network`)."""

    def __init__(self, fabric: SimulatedFabric, incarnation: Incarnation) -> None:
        self._fabric = fabric
        self._incarnation = incarnation

    def connect(self, address: str) -> SimulatedChannel:
        return SimulatedChannel(self._fabric, self._incarnation, address)

    async def serve(self, address: str, services: Sequence[Service]) -> SimulatedServer:
        bound = self._fabric.listen(address, self._incarnation, services)
        return SimulatedServer(self._fabric, self._incarnation, bound)


class SimulatedChannel:
    """One stream to one address (`kshare_rpc.network.Channel`)."""

    def __init__(self, fabric: SimulatedFabric, incarnation: Incarnation, address: str) -> None:
        self._fabric = fabric
        self._stream = _Stream(incarnation)
        self._address = address

    @property
    def streams_lost(self) -> int:
        return self._stream.number - 1

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        future = self._fabric.start_call(
            self._stream, self._address, method, request.SerializeToString(), b"".join(payload), timeout_ms
        )
        response, answer_payload = await future
        return method.response_type.FromString(response), memoryview(answer_payload)

    async def close(self) -> None:
        """Nothing to close: calls under way end by themselves."""


class SimulatedServer:
    """A bound address (`kshare_rpc.network.Server`)."""

    def __init__(self, fabric: SimulatedFabric, incarnation: Incarnation, address: str) -> None:
        self._fabric = fabric
        self._incarnation = incarnation
        self.address = address

    async def stop(self, grace_ms: int) -> None:
        """As the server of `kshare_rpc.exchange.server`, it sends the answers that it has before it closes streams."""
        self._fabric.unlisten(self.address, self._incarnation)
        tasks = self._fabric.executing(self._incarnation)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_ms / 1000)
            for task in sorted(late, key=asyncio.Task.get_name):
                task.cancel()
        loop = self._fabric.loop
        deadline = loop.time() + FLUSH_AT_STOP_MS / 1000
        while self._fabric.is_answering(self._incarnation) and loop.time() < deadline:
            await asyncio.sleep(0.005)


def later(previous: float, wanted: float) -> float:
    """`wanted`, or the least time after `previous`: timers of the same time have no order."""
    return max(wanted, math.nextafter(previous, math.inf))


def in_no_host(
    loop: VirtualLoop, when: float, callback: Callable[..., object], *arguments: object
) -> asyncio.TimerHandle:
    """A timer at a true time that runs whatever becomes of the host that sets it."""
    return loop.call_at_true(when, callback, *arguments, context=_NO_HOST)


_NO_HOST = contextvars.Context()
