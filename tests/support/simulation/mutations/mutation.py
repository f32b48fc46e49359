"""How a bug is planted: a method of the product is replaced for one run, or what a node's network or disk does changes.

`Patch` replaces a function, a method or a constant of the product. `MutatedNetwork` hands a node's calls and handlers
to a wrapper, which may change what they do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

from kshare_rpc.network import Handler, Method, Network, Payload, Server, Service, StreamChannel

WrapHandler = Callable[[Handler], Handler]
Call = Callable[..., Awaitable[tuple[Any, memoryview]]]
WrapCall = Callable[[Call], Call]


@dataclass(frozen=True, slots=True)
class Patch:
    """`name` of a class or module of the product is another one; `make` gets the real one."""

    owner: type | ModuleType
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What is broken. The factories make a new wrapper for each life of a node."""

    patches: Sequence[Patch] = ()
    """What is replaced in the product itself."""
    unsynced_roles: tuple[str, ...] = ()
    """Roles whose disks say that a write is durable before it is."""
    handlers: Mapping[str, Callable[[], Mapping[Method[Any, Any], WrapHandler]]] = field(default_factory=dict)
    """By role."""
    calls: Mapping[str, Mapping[Method[Any, Any], WrapCall]] = field(default_factory=dict)
    """By role."""

    def patched(self) -> AbstractContextManager[None]:
        """While it is entered, the product has the bug."""
        return _patched(self.patches)

    def network(self, role: str, network: Network) -> Network:
        """The network that a node of this role gets."""
        if role not in self.handlers and role not in self.calls:
            return network
        return MutatedNetwork(network, self.handlers.get(role, dict)(), self.calls.get(role, {}))


@contextmanager
def _patched(patches: Sequence[Patch]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(patch.object(one.owner, one.name, one.make(getattr(one.owner, one.name))))
        yield


def planted(*patches: Patch) -> Callable[[], Mutation]:
    """A mutation of the product itself; the patches keep nothing from one run to the next."""
    return lambda: Mutation(patches=patches)


def at_role(role: str, method: Method[Any, Any], wrap: WrapHandler) -> Callable[[], Mutation]:
    """A handler of a role that does something else."""
    return lambda: Mutation(handlers={role: lambda: {method: wrap}})


class MutatedNetwork:
    """See the module's text."""

    def __init__(
        self,
        network: Network,
        handlers: Mapping[Method[Any, Any], WrapHandler],
        calls: Mapping[Method[Any, Any], WrapCall],
    ) -> None:
        self._network = network
        self._handlers = handlers
        self._calls = calls

    def connect(self, address: str) -> StreamChannel:
        return MutatedChannel(self._network.connect(address), self._calls)

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        changed = [dataclasses.replace(service, handlers=self._changed(service.handlers)) for service in services]
        return await self._network.serve(address, changed)

    def _changed(self, handlers: Mapping[Method[Any, Any], Handler]) -> dict[Method[Any, Any], Handler]:
        return {
            method: self._handlers[method](handler) if method in self._handlers else handler
            for method, handler in handlers.items()
        }


class MutatedChannel:
    """A channel whose calls of some methods are changed."""

    def __init__(self, channel: StreamChannel, calls: Mapping[Method[Any, Any], WrapCall]) -> None:
        self._channel = channel
        self._calls = calls

    @property
    def streams_lost(self) -> int:
        return self._channel.streams_lost

    async def call(
        self, method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        call: Call = self._channel.call
        if method in self._calls:
            call = self._calls[method](call)
        return await call(method, request, payload, timeout_ms=timeout_ms)

    async def close(self) -> None:
        await self._channel.close()
