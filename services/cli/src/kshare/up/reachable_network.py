"""The network of nodes of `kshare up` in one process that also accept calls of other processes.

Nodes in the process call each other directly. A node on this network also serves the roles' gRPC exchange stream at
the same address, and the operations service for probes and operators at a separate address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kshare_rpc.call_server import Audit
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.in_process_network import TracedNetwork
from kshare_rpc.network import Server, Service, StreamChannel


class ReachableNetwork:
    """A `Network`; it calls `on_served(address, operations_address)` once a node listens."""

    def __init__(
        self,
        inner: TracedNetwork,
        on_served: Callable[[str, str], None],
        tls: ExchangeTls | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._inner = inner
        self._outer = GrpcNetwork(statistics=inner.statistics, tls=tls, audit=audit)
        self._on_served = on_served

    def connect(self, address: str) -> StreamChannel:
        return self._inner.connect(address)

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        outer = await self._outer.serve(address, services)
        inner = await self._inner.serve(outer.address, services)
        assert self._outer.operations_address is not None
        self._on_served(outer.address, self._outer.operations_address)
        return _TwoServers(inner, outer)


class _TwoServers:
    """A `Server` for calls in this process and from other processes."""

    def __init__(self, inner: Server, outer: Server) -> None:
        self._inner = inner
        self._outer = outer

    @property
    def address(self) -> str:
        return self._inner.address

    async def stop(self, grace_ms: int) -> None:
        await asyncio.gather(self._outer.stop(grace_ms), self._inner.stop(grace_ms))
