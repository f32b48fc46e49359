"""A client's own connection to a broker of the existing cluster: relayed frames and requests of the gateway's own.

A broker answers the requests of a connection in order, so each response belongs to the oldest request without one.
Relayed frames keep the client's correlation ids. The ids of the gateway's own requests need only differ from nothing:
they are checked, never looked up.

Responses to relayed requests are passed on as they arrive, not as whole frames, where the client's next response is
theirs. Others are gathered until it is their turn (`LinkOwner.is_next`). Nothing else is buffered here: a client that
does not read stops the reading from the broker, and a broker that does not read stops the reading from the client.

The timeout of the gateway's own requests counts from when the broker has answered those before. It begins them no
sooner, and a client's JoinGroup or long Fetch among them may take minutes.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from kshare_upstream.connection import MAXIMUM_RESPONSE_BYTES, BrokerAddress, ConnectionLost
from kshare_wire.framing import LENGTH_SIZE
from kshare_wire.messages import Buffer, MalformedRequest, Request, Response, decode_response, encode_request

HEAD_SIZE = 8
"""The length of a response, and its correlation id."""
CLOSE_TIMEOUT_MS = 10_000
"""How long a broker may take to read what was sent before the client went."""
_HEAD = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")

AResponse = TypeVar("AResponse", bound=Response)
Connect = Callable[[Callable[[], asyncio.Protocol], BrokerAddress], Awaitable[Any]]
"""Connects a protocol to a broker; OSError."""


class LinkOwner(Protocol):
    """The client's connection."""

    def is_next(self, place: object) -> bool:
        """Whether the client's next response is the one of this place."""
        ...

    def pass_on(self, part: Buffer) -> None:
        """Sends a part of the client's next response."""
        ...

    def was_passed_on(self, place: object) -> None:
        """The last part of a response was sent."""
        ...

    def was_gathered(self, place: object, response: Buffer) -> None:
        """A response is complete, with its length."""
        ...

    def own_request_was_answered(self) -> None:
        """The cluster has answered what it was asked as this client, which it does for authenticated clients only."""
        ...

    def link_is_lost(self, reason: str, *, had_requests: bool) -> None:
        """`had_requests`: some may be lost, or were refused without a response, which is said in no other way."""
        ...

    def link_has_room(self) -> None:
        """The broker reads again, after `UpstreamLink.is_full` was true."""
        ...


@dataclass(slots=True)
class _Relayed:
    """A relayed request without a response yet."""

    correlation_id: int
    place: object
    is_gathered: bool
    """Whether the whole response is wanted, even if it is the client's next."""


@dataclass(slots=True)
class _Asked:
    """A request of the gateway's own without a response yet."""

    correlation_id: int
    name: str
    kind: type[Response]
    version: int
    response: asyncio.Future[Any]
    timeout_ms: int


class UpstreamLink(asyncio.Protocol):
    """See the module docstring. It connects at the first request; `address` is asked for then."""

    def __init__(
        self, owner: LinkOwner, address: Callable[[], BrokerAddress], connect: Connect, *, attempts: int = 1
    ) -> None:
        """`attempts`: how many addresses are asked for while none can be connected to."""
        self._owner = owner
        self._address = address
        self._connect = connect
        self._attempts = attempts
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[Buffer] = []
        """What is to be sent once the connection is open."""
        self._waiting: deque[_Relayed | _Asked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the link if the oldest request is the gateway's own and gets no response in time."""
        self.relayed_count = 0
        """Number of relayed requests without a response."""
        self._before_unconfirmed: int | None = None
        """Responses due before the last request without one; None once a later request has its response."""
        self.is_full = False
        """Whether the broker, or the connecting to it, is too slow to take more now."""
        self._reading_is_paused = False
        self._is_closed = False
        self._last_id = 0
        self._head = bytearray()
        self._remaining = 0
        """Bytes of the response that began and is not complete."""
        self._current: _Relayed | _Asked | None = None
        self._gathered: bytearray | None = None
        self._broker = ""

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Whether no response is due."""
        return not self._waiting and self._before_unconfirmed is None

    def relay(self, frame: memoryview, correlation_id: int, place: object | None, *, is_gathered: bool = False) -> None:
        """Sends a client's request; one without a place gets no response."""
        if place is None:
            self._before_unconfirmed = len(self._waiting)
        else:
            self._waiting.append(_Relayed(correlation_id, place, is_gathered))
            self.relayed_count += 1
        self._send([_LENGTH.pack(len(frame)), frame])

    async def ask(self, request: Request[AResponse], version: int, client_id: str, timeout_ms: int) -> AResponse:
        """The response to a request of the gateway's own; ConnectionLost."""
        kind: type[AResponse] = request.RESPONSE  # type: ignore[assignment]  # Request[AResponse] says so
        response: asyncio.Future[AResponse] = asyncio.get_running_loop().create_future()
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        asked = _Asked(self._last_id, type(request).__name__, kind, version, response, timeout_ms)
        self._waiting.append(asked)
        if self._waiting[0] is asked:
            self._time_oldest()
        self._send(encode_request(request, version, self._last_id, client_id))
        return await response

    def pause_reading(self) -> None:
        """The client does not read its responses."""
        self._reading_is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading_is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes the connection after what was sent before; nothing more is told to the owner."""
        self._is_closed = True
        self._stop_timer()
        if self._connecting is not None:
            self._connecting.cancel()
        self._fail_asked("the client's connection was closed")
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_MS / 1000, transport.abort)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        if self._is_closed:
            opened.abort()
            return
        self._transport = opened
        if self._reading_is_paused:
            opened.pause_reading()
        unsent, self._unsent = self._unsent, []
        self.is_full = False
        opened.writelines(unsent)
        self._owner.link_has_room()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(f"the connection to broker {self._broker} was lost{f': {error}' if error else ''}")

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if not self._is_closed:
            self._owner.link_has_room()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        view, position, end = memoryview(data), 0, len(data)
        while position < end and not self._is_closed:
            if self._remaining:
                part = view[position : position + self._remaining]
                position += len(part)
                self._take(part)
            elif not self._head and end - position >= HEAD_SIZE:
                length, correlation_id = _HEAD.unpack_from(view, position)
                self._begin(length, correlation_id)
            else:
                missing = HEAD_SIZE - len(self._head)
                self._head += view[position : position + missing]
                position += missing
                if len(self._head) == HEAD_SIZE:
                    head, self._head = bytes(self._head), bytearray()
                    self._begin(*_HEAD.unpack(head))
                    self._take(memoryview(head))

    def _begin(self, length: int, correlation_id: int) -> None:
        """Begins the response with this head, whose own bytes are taken like those that follow."""
        if not self._waiting or self._waiting[0].correlation_id != correlation_id or length < 4:
            self._lose(f"broker {self._broker} answered a request that it was not sent")
            return
        if length > MAXIMUM_RESPONSE_BYTES:
            self._lose(f"broker {self._broker} sent a response of {length} bytes")
            return
        current = self._current = self._waiting[0]
        self._remaining = LENGTH_SIZE + length
        streams = isinstance(current, _Relayed) and not current.is_gathered and self._owner.is_next(current.place)
        self._gathered = None if streams else bytearray()

    def _take(self, part: memoryview) -> None:
        if self._is_closed:
            return
        self._remaining -= len(part)
        if self._gathered is None:
            self._owner.pass_on(part)
        else:
            self._gathered += part
        if not self._remaining and not self._is_closed:
            self._end_response()

    def _end_response(self) -> None:
        current, self._current = self._waiting.popleft(), None
        self._time_oldest()
        if self._before_unconfirmed is not None:
            self._before_unconfirmed = self._before_unconfirmed - 1 if self._before_unconfirmed else None
        gathered, self._gathered = self._gathered, None
        if isinstance(current, _Relayed):
            self.relayed_count -= 1
            if gathered is None:
                self._owner.was_passed_on(current.place)
            else:
                self._owner.was_gathered(current.place, gathered)
            return
        assert gathered is not None, "responses to the gateway's own requests are gathered"
        if current.response.done():
            return  # the handler was cancelled
        try:
            response = decode_response(current.kind, current.version, memoryview(gathered)[LENGTH_SIZE:])
        except MalformedRequest as error:
            current.response.set_exception(ConnectionLost(str(error)))
            self._lose(f"{current.kind.__name__} from broker {self._broker} cannot be decoded: {error}")
            return
        current.response.set_result(response)

    def _time_oldest(self) -> None:
        self._stop_timer()
        oldest = self._waiting[0] if self._waiting else None
        if isinstance(oldest, _Asked) and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(oldest.timeout_ms / 1000, self._is_late, oldest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self, asked: _Asked) -> None:
        self._lose(f"broker {self._broker} did not answer {asked.name} within {asked.timeout_ms} ms")

    def _send(self, parts: Sequence[Buffer]) -> None:
        if self._is_closed:
            self._fail_asked(f"the connection to broker {self._broker} is closed")
            return
        if self._transport is not None:
            self._transport.writelines(parts)
            return
        self._unsent += parts
        self.is_full = True
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            for attempts_left in reversed(range(self._attempts)):
                try:
                    address = self._address()
                    self._broker = str(address)
                    await self._connect(lambda: self, address)
                    return
                except OSError as error:
                    if not attempts_left:
                        self._lose(f"connecting to broker {self._broker} failed: {error}")
        finally:
            self._connecting = None

    def _lose(self, reason: str) -> None:
        """Ends this link for good; the owner closes, or makes another one."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_timer()
        had_requests = bool(self._waiting) or self._before_unconfirmed is not None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._fail_asked(reason)
        self._owner.link_is_lost(reason, had_requests=had_requests)

    def _fail_asked(self, reason: str) -> None:
        for each in self._waiting:
            if isinstance(each, _Asked) and not each.response.done():
                each.response.set_exception(ConnectionLost(reason))
