"""Metrics in Prometheus' text format, and the small HTTP server that shows them; no threads.

Every process has the operating system's view of it, the garbage collector's, and how late the event loop is: what runs
in the loop for long (an fsync, a large answer) makes everything else wait, and this is where it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

NAMESPACE = "kshare"
LAG_INTERVAL_MS = 250
LAG_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
REQUEST_TIMEOUT_MS = 5_000
CONNECTIONS_LIMIT = 32
"""Connections that read /metrics at the same time; another one is closed at once."""


class Metrics:
    """The metrics of one process. Names get the prefix `kshare_`; units come last (`_seconds`, `_bytes`, `_total`)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._lag = self.histogram(
            "event_loop_lag_seconds", "How late the event loop runs a timer.", buckets=LAG_BUCKETS_SECONDS
        )
        self._server: asyncio.Server | None = None
        self._lag_task: asyncio.Task[None] | None = None
        self._connections = 0

    def counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, documentation, labels, namespace=NAMESPACE, registry=self.registry)

    def gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, documentation, labels, namespace=NAMESPACE, registry=self.registry)

    def histogram(
        self, name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(
            name, documentation, labels, namespace=NAMESPACE, registry=self.registry, buckets=tuple(buckets)
        )

    async def serve(self, listen: str) -> str:
        """Serves GET /metrics at `listen` ("host:port") until `stop`; returns the address that was bound."""
        host, _, port = listen.rpartition(":")
        self._server = await asyncio.start_server(self._answer, host, int(port), limit=16 * 1024)
        self._lag_task = asyncio.get_running_loop().create_task(self._measure_lag(), name="event-loop-lag")
        bound_port = self._server.sockets[0].getsockname()[1]
        return f"{host}:{bound_port}"

    async def stop(self) -> None:
        if self._lag_task is not None:
            self._lag_task.cancel()
            await asyncio.gather(self._lag_task, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_MS / 1000
            await asyncio.sleep(LAG_INTERVAL_MS / 1000)
            self._lag.observe(max(0.0, loop.time() - due))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_LIMIT:
                async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method == b"GET" and path == b"/metrics":
            return _http("200 OK", CONTENT_TYPE_LATEST, generate_latest(self.registry))
        return _http("404 Not Found", "text/plain; charset=utf-8", b"only GET /metrics is served here\n")


def _http(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
