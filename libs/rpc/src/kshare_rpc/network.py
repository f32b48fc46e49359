"""The port between roles: a call is a message and raw bytes; so is its answer.

A `Service` is a table of handlers. A `Channel` calls the handlers of one address. Implementations differ only in what
lies between: gRPC streams, nothing at all, or a simulated network that delays, drops and cuts.

A handler answers Kafka errors inside its message. An exception that leaves a handler is a bug or a StorageFailure that
nobody translated: the caller sees CallFailed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

Payload = Sequence[bytes | memoryview]
"""Raw bytes that belong to a message, in pieces; their lengths are in the message."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """An RPC: `service` and `name` as in the protos, and its message types."""

    service: str
    name: str
    request_type: type[Request]
    response_type: type[Response]
    has_payload: bool = False
    """Whether the unary form carries a payload in the message's own `payload` field."""
    has_long_answer: bool = False
    """Whether answers are full of records: such calls begin only while callers read what was answered before."""
    path: str = field(init=False)
    """What calls name it by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", f"{self.service}/{self.name}")


class CallFailed(Exception):
    """The handler raised, or the other side does not know the method; calling again will not help."""


class ChannelUnavailable(CallFailed):
    """The other side cannot be reached, or was lost before it answered: whether the call took effect is unknown."""


class CallNotStarted(ChannelUnavailable):
    """Nobody was reached, or the other side is stopping: the call certainly had no effect."""


class CallTimeout(ChannelUnavailable):
    """No answer in time: whether the call took effect is unknown."""


Answer = tuple[Response, Payload]

Handler = Callable[[Any, memoryview], Awaitable[Message | tuple[Message, Payload]]]
"""Takes the request message and its payload in one piece; returns the response, with a payload where there is one.

A coroutine function, or a plain one that begins its work at once and returns a Future: that one costs no task. A server
that stops cancels the Future, so it may have ended before the handler ends it.
"""


def is_coroutine_handler(handler: Handler) -> bool:
    """Whether a handler is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


@dataclass(frozen=True, slots=True)
class Service:
    """What a role serves: its name in the protos ("Leader") and a handler for each method."""

    name: str
    handlers: Mapping[Method[Any, Any], Handler]
    healthy: Callable[[], bool] = lambda: True
    """Feeds the gRPC health service."""
    cluster_problems: Callable[[], Sequence[str]] | None = None
    """What keeps the cluster from serving, as far as this role knows; None: it does not know (`cluster_health`)."""
    unread_answers_bytes: int | None = None
    """How many bytes of answers may wait for their callers to read them before calls with `has_long_answer` wait; None:
    there is no limit. In one process there is nothing between handler and caller, so it has no effect."""


class Channel(Protocol):
    """Calls one address. Reconnects by itself; safe to share between tasks."""

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        """The response message and its payload in one piece; raises CallFailed or one of its kinds."""
        ...

    async def close(self) -> None: ...


class Server(Protocol):
    """A service that is being served."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that was really bound."""
        ...

    async def stop(self, grace_ms: int) -> None:
        """Refuses new calls, lets those under way finish for `grace_ms`, then cancels them."""
        ...


class Network(Protocol):
    """Where addresses mean something."""

    def connect(self, address: str) -> Channel: ...

    async def serve(self, address: str, services: Sequence[Service]) -> Server: ...
