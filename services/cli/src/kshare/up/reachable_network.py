"""The network of the nodes in `kshare up --single-process` that commands of other processes call.

The roles reach each other by plain calls. What a node serves here can be reached over gRPC, too, at the same address:
the stream that roles use, and at an address of its own what it offers to probes and people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kshare_rpc.exchange_tls import ExchangeTls
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.in_process_network import TracedNetwork
from kshare_rpc.network import Channel, Server, Service


class ReachableNetwork:
    """A `Network`; `on_served(address, operations_address)` is told where the node can be reached."""

    def __init__(
        self, inner: TracedNetwork, on_served: Callable[[str, str], None], tls: ExchangeTls | None = None
    ) -> None:
        self._inner = inner
        self._outer = GrpcNetwork(statistics=inner.statistics, tls=tls)
        self._on_served = on_served

    def connect(self, address: str) -> Channel:
        return self._inner.connect(address)

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        outer = await self._outer.serve(address, services)
        inner = await self._inner.serve(outer.address, services)
        assert self._outer.operations_address is not None
        self._on_served(outer.address, self._outer.operations_address)
        return _TwoServers(inner, outer)


class _TwoServers:
    """A `Server` that calls and processes reach."""

    def __init__(self, inner: Server, outer: Server) -> None:
        self._inner = inner
        self._outer = outer

    @property
    def address(self) -> str:
        return self._inner.address

    async def stop(self, grace_ms: int) -> None:
        await asyncio.gather(self._outer.stop(grace_ms), self._inner.stop(grace_ms))
