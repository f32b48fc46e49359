"""The operations server of a role, on grpcio: every method in unary form, health and reflection.

It is for probes, grpcurl and clients in other languages: typed messages, with a payload in the message's own `payload`
field. The roles themselves use `Exchange` streams, which have their own port (exchange_server).

Health covers each service, and "" for all: whether it can do its work. LIVENESS is SERVING when the store is open and
the event loop runs, whatever the role waits for, so a restart by it happens only where it helps. CLUSTER is SERVING
when this role and the whole cluster can serve; the problems are in the answer's trailing metadata.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kshare_core.health_services import CLUSTER, CLUSTER_PROBLEMS_KEY, LIVENESS
from kshare_rpc.call_server import FLUSH_AT_STOP_MS, CallServer
from kshare_rpc.call_statistics import HANDLER_FAILED
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT
from kshare_rpc.exchange.tls import ANYBODY
from kshare_rpc.grpc_channel import PACKAGE
from kshare_rpc.network import Handler, Method, Payload, Service

HEALTH_INTERVAL_MS = 1_000
_SERVER_OPTIONS = (
    ("grpc.max_send_message_length", FRAME_BYTES_LIMIT),
    ("grpc.max_receive_message_length", FRAME_BYTES_LIMIT),
    # Otherwise two processes on one port would silently share its connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class OperationsServer:
    """See the module's text."""

    def __init__(self, calls: CallServer, *, is_closed: bool = False) -> None:
        """One that is closed serves health only, without the texts of problems."""
        self._calls = calls
        self._is_closed = is_closed
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._health = _Health(calls, tells_problems=not is_closed)
        self._health_task: asyncio.Task[None] | None = None

    async def start(self, address: str) -> str:
        """Listens on "host:port" (port 0: any free one); returns it with the bound port. OSError if it cannot."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if not self._is_closed:
            self._add_methods()
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            text = f"cannot listen on {address!r}: the port is taken, or the host is not this machine's ({error})"
            raise OSError(errno.EADDRINUSE, text) from error
        await self._refresh_health()
        await self._server.start()
        self._health_task = asyncio.get_running_loop().create_task(self._watch_health(), name="health")
        return f"{address.rpartition(':')[0]}:{port}"

    def _add_methods(self) -> None:
        names = [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        for service in self._calls.services:
            if service.handlers:
                name = f"{PACKAGE}.{service.name}"
                self._server.add_generic_rpc_handlers((self._rpc_handlers(name, service),))
                names.append(name)
        reflection.enable_server_reflection(names, self._server)

    async def show_stopping(self) -> None:
        """Makes all services NOT_SERVING permanently."""
        await self._health.enter_graceful_shutdown()
        if self._health_task is not None:
            self._health_task.cancel()

    async def stop(self) -> None:
        await self._server.stop(FLUSH_AT_STOP_MS / 1000)

    def _rpc_handlers(self, name: str, service: Service) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler),
                request_deserializer=method.request_type.FromString,
                response_serializer=method.response_type.SerializeToString,
            )
            for method, handler in service.handlers.items()
        }
        return grpc.method_handlers_generic_handler(name, handlers)

    def _unary(self, method: Method[Any, Any], handler: Handler) -> Callable[[Any, Any], Awaitable[Message]]:
        async def serve(request: Any, context: Any) -> Message:
            if self._calls.is_stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"the server at {self._calls.address} is stopping")
            payload = b""
            if method.has_payload and "payload" in method.request_type.DESCRIPTOR.fields_by_name:
                payload = request.payload
                request.ClearField("payload")
            statistics, now = self._calls.statistics.of_served(method.path), self._calls.statistics.now
            started_at = statistics.started(now())
            try:
                with self._calls.counted():
                    result = await handler(request, memoryview(payload))
            except Exception as error:
                statistics.failed(HANDLER_FAILED)
                self._calls.on_handler_error(method.path, error)
                await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
                raise
            finally:
                statistics.ended(now() - started_at)
            message, pieces = result if isinstance(result, tuple) else (result, ())
            if method.is_audited and self._calls.audit is not None:
                caller = ANYBODY._replace(host=context.peer())
                self._calls.audit.operation(method, request, caller, message, "")
            return _with_payload(message, pieces)

        return serve

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_MS / 1000)
            await self._refresh_health()

    def _is_healthy(self, service: Service) -> bool:
        """False also if its health cannot be determined: an exception must not end the watch."""
        try:
            return service.healthy()
        except Exception as error:
            self._calls.on_handler_error(f"the health of {service.name}", error)
            return False

    async def _refresh_health(self) -> None:
        statuses = {f"{PACKAGE}.{service.name}": self._is_healthy(service) for service in self._calls.services}
        statuses[""] = all(statuses.values())
        statuses[LIVENESS] = True
        for name, healthy in statuses.items():
            status = health_pb2.HealthCheckResponse
            await self._health.set(name, status.SERVING if healthy else status.NOT_SERVING)


class _Health(health.aio.HealthServicer):  # type: ignore[misc]  # grpcio-health-checking has no types
    """The health service; it computes CLUSTER per request, because that may visit every partition."""

    def __init__(self, calls: CallServer, *, tells_problems: bool) -> None:
        super().__init__()
        self._calls = calls
        self._tells_problems = tells_problems

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        if request.service != CLUSTER:
            answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
            return answer
        looks = [service.cluster_problems for service in self._calls.services if service.cluster_problems is not None]
        if not looks:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this role cannot report the cluster's health")
        problems = [f"{each.name} is not healthy" for each in self._calls.services if not each.healthy()]
        problems += [problem for look in looks for problem in look()]
        if problems and self._tells_problems:
            context.set_trailing_metadata(((CLUSTER_PROBLEMS_KEY, "; ".join(problems).encode()),))
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if problems else status.SERVING)


def _with_payload(message: Any, pieces: Payload) -> Message:
    """The unary form of an answer: a copy with the payload, because the handler still owns the message."""
    whole = message
    if pieces:
        whole = type(message)()
        whole.CopyFrom(message)
        whole.payload = b"".join(pieces)
    filled: Message = whole
    return filled
