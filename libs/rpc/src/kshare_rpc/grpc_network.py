"""The gRPC network between processes.

A role listens on two addresses. Other roles send their calls as frames over one persistent `Exchange` stream to the
address in the catalog (exchange_server, grpc_channel). The operations address serves the same methods in unary form,
with health and reflection, to probes, people and clients in other languages (operations_server).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kshare_core.tracing import Tracer
from kshare_rpc.call_server import Audit, CallServer, HandlerError, log_handler_error
from kshare_rpc.call_statistics import CallStatistics
from kshare_rpc.exchange.server import ExchangeListener
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.grpc_channel import GrpcChannel
from kshare_rpc.network import Service
from kshare_rpc.operations_server import OperationsServer


class GrpcNetwork:
    """A `Network` between processes. Addresses are "host:port"."""

    def __init__(
        self,
        *,
        operations_listen: str = "127.0.0.1:0",
        advertised_address: str | None = None,
        on_handler_error: HandlerError = log_handler_error,
        statistics: CallStatistics | None = None,
        tracer: Tracer | None = None,
        tls: ExchangeTls | None = None,
        local_sockets: bool = True,
        audit: Audit | None = None,
    ) -> None:
        """`operations_listen`: the address of unary calls, health and reflection (port 0: any free one).

        `advertised_address`: the server's address for other roles, where they cannot reach the listening address, as
        in a container. `tracer` records the calls that are part of a trace. `tls` encrypts the streams; operations are
        then health only. `local_sockets`: roles of one machine connect over Unix sockets.
        """
        self._local_sockets = local_sockets
        self._audit = audit
        self._tracer = tracer
        self._tls = tls
        self.statistics = statistics or CallStatistics()
        self._operations_listen = operations_listen
        self._advertised_address = advertised_address
        self._on_handler_error = on_handler_error
        self.operations_address: str | None = None
        """The operations address of the newest server; None before the first."""

    def connect(self, address: str) -> GrpcChannel:
        tls = None if self._tls is None else self._tls.client
        return GrpcChannel(address, self.statistics, tls, local_sockets=self._local_sockets)

    async def serve(self, address: str, services: Sequence[Service]) -> GrpcServer:
        """Listens on `address` (port 0: any free one); OSError if it cannot."""
        server = GrpcServer(
            services,
            self._on_handler_error,
            self.statistics,
            self._tracer,
            self._tls,
            local_sockets=self._local_sockets,
            audit=self._audit,
        )
        await server.start(address, self._operations_listen)
        if self._advertised_address is not None:
            server.advertise(self._advertised_address)
        self.operations_address = server.operations_address
        return server

    async def serve_health(
        self, name: str, healthy: Callable[[], bool], cluster_problems: Callable[[], Sequence[str]] | None = None
    ) -> GrpcServer:
        """The operations server of a role that no other role calls: health and reflection only."""
        service = Service(name, {}, healthy, cluster_problems)
        server = GrpcServer([service], self._on_handler_error, self.statistics, None, self._tls)
        await server.start(None, self._operations_listen)
        self.operations_address = server.operations_address
        return server


class GrpcServer:
    """A `Server` with a role's Exchange and operations addresses; made by `GrpcNetwork.serve`."""

    def __init__(
        self,
        services: Sequence[Service],
        on_handler_error: HandlerError,
        statistics: CallStatistics,
        tracer: Tracer | None,
        tls: ExchangeTls | None = None,
        *,
        local_sockets: bool = True,
        audit: Audit | None = None,
    ) -> None:
        self._calls = CallServer(services, on_handler_error, statistics, tracer, audit)
        self._exchange = ExchangeListener(self._calls, tls, local_sockets=local_sockets)
        self._operations = OperationsServer(self._calls, is_closed=tls is not None)
        self._is_called = False
        self.operations_address = ""

    @property
    def address(self) -> str:
        return self._calls.address

    async def start(self, address: str | None, operations_listen: str) -> None:
        if address is not None:
            self._calls.address = await self._exchange.start(address)
            self._is_called = True
        try:
            self.operations_address = await self._operations.start(operations_listen)
        except OSError:
            if self._is_called:
                await self._exchange.stop()
            raise

    def advertise(self, address: str) -> None:
        """Sets the address that the server reports."""
        self._calls.address = address

    async def stop(self, grace_ms: int) -> None:
        if self._calls.is_stopping:
            return
        self._calls.is_stopping = True
        await self._operations.show_stopping()
        await self._calls.finish(grace_ms)
        if self._is_called:
            await self._exchange.stop()
        await self._operations.stop()
