"""The port for calls between roles: a call is a message and raw bytes; so is its answer.

A `Service` is a table of handlers. A `Channel` calls the handlers of one address. Implementations differ only in the
transport: gRPC streams, a direct call in one process, or a simulated network that delays, drops and cuts.

A handler answers Kafka errors inside its message. An exception that leaves a handler is a bug or an untranslated
StorageFailure: the caller sees CallFailed.
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
"""The raw bytes of a message, in pieces; their lengths are in the message."""


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
    """Whether answers are full of records: such calls begin only while callers read the answers before them."""
    is_repeatable: bool = False
    """Whether a call whose outcome is unknown may be made again (`idempotency_level` in the protos)."""
    is_audited: bool = False
    """Whether its calls have lines in the audit log: commands of administrators."""
    may_wait_long: bool = False
    """Whether calls may wait for records or for other clients. Such calls have a limit of their own on each side."""
    callers: tuple[str, ...] = ()
    """The roles whose certificates allow the call (`kshare_rpc.exchange.tls`); empty: every role."""
    path: str = field(init=False)
    """The name in calls: "service/name"."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", f"{self.service}/{self.name}")


class CallFailed(Exception):
    """The handler raised, or the server does not know the method; a retry will not help."""


class ChannelUnavailable(CallFailed):
    """The server cannot be reached, or was lost before it answered: whether the call took effect is unknown."""


class CallNotStarted(ChannelUnavailable):
    """No server was reached, or the server is stopping: the call certainly had no effect."""


class CallTimeout(ChannelUnavailable):
    """No answer in time: whether the call took effect is unknown."""


class ConnectTimeout(CallTimeout, CallNotStarted):
    """No connection in time: the call was not sent and will not be, so it certainly had no effect."""


Answer = tuple[Response, Payload]

Handler = Callable[[Any, memoryview], Awaitable[Message | tuple[Message, Payload]]]
"""A handler takes the request message and its payload in one piece; it returns the response, with a payload or without.

It is a coroutine function, or a plain function that begins its work at once and returns a Future, which costs no task.
A server that stops cancels the Future, so it may be done before the handler completes it.
"""


def is_coroutine_handler(handler: Handler) -> bool:
    """Whether a handler is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a role: its name in the protos ("Leader") and a handler for each method."""

    name: str
    handlers: Mapping[Method[Any, Any], Handler]
    healthy: Callable[[], bool] = lambda: True
    """The service's state in the gRPC health service."""
    cluster_problems: Callable[[], Sequence[str]] | None = None
    """Problems that keep the cluster from serving, as this role sees it; None: it does not know (`cluster_health`)."""
    unread_answers_bytes: int | None = None
    """The bytes of answers that callers may leave unread before calls with `has_long_answer` are held; None: no limit.
    It has no effect in one process, where answers are handed to callers directly."""


class Channel(Protocol):
    """A client of one address. Reconnects by itself; safe to share between tasks."""

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        """The response message and its payload in one piece; raises CallFailed or a subclass."""
        ...

    async def close(self) -> None: ...


class StreamChannel(Channel, Protocol):
    """A channel that sends its calls on one stream at a time, in their order."""

    @property
    def streams_lost(self) -> int:
        """How often all calls in flight failed together; calls begun at the same number never overtake each other."""
        ...


class Server(Protocol):
    """A running server of services."""

    @property
    def address(self) -> str:
        """The listening address, with the port that was really bound."""
        ...

    async def stop(self, grace_ms: int) -> None:
        """Refuses new calls, lets those in flight finish for `grace_ms`, then cancels them."""
        ...


class Network(Protocol):
    """The transport in which addresses are valid."""

    def connect(self, address: str) -> StreamChannel: ...

    async def serve(self, address: str, services: Sequence[Service]) -> Server: ...
