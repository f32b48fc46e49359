"""Metrics in Prometheus' text format or OpenMetrics, and a small HTTP server for them; without threads.

A scrape reads all nodes' counts at once (`metrics.Source`) and writes some hundred lines per turn of the event loop,
so that thousands of samples do not delay requests.

Every process exports the metrics of the operating system and the garbage collector (prometheus-client), and the lag of
the event loop: long work in the loop (an fsync, a large answer) delays everything else, and the lag shows it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from kshare_core.configs import Configs
from kshare_rpc.call_statistics import CallStatistics
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.local_sockets import every_address_socket
from kshare_runtime.clock import stopwatch_s
from kshare_servicekit.memory.giving_back import MemoryReturn
from kshare_servicekit.metric_families import Family, Format, PreparedSource, Readings, Row, Source, lines_of
from kshare_servicekit.process_metrics import MeasuredHealth, ProcessSource

LAG_INTERVAL_MS = 250
REQUEST_TIMEOUT_MS = 5_000
"""The time for a request; then the connection ends."""
RESPONSE_TIMEOUT_MS = 10_000
"""The time for the response; then the connection ends, whatever the client has read of it. Prometheus waits as long."""
CONNECTIONS_LIMIT = 32
"""The maximum of concurrent connections to /metrics; another one is closed at once."""
LINES_PER_TURN = 1_000
OPEN_METRICS_END = "# EOF\n"
"""The last line of OpenMetrics, without which a scraper takes the response for a part."""
NO_LABELS: Mapping[str, str] = {}

_PLAIN_TEXT = "text/plain; charset=utf-8"
_logger = logging.getLogger(__name__)


class Metrics:
    """The metrics of one process. Names get the prefix `kshare_`; units come last (`_seconds`, `_bytes`, `_total`).

    `has_several_nodes`: the process runs more than one node, so their samples get the label `node_id`.
    """

    def __init__(self, *, has_several_nodes: bool = False) -> None:
        self.now = stopwatch_s
        """A steady clock in seconds, for durations."""
        self._has_several_nodes = has_several_nodes
        self._process = ProcessSource()
        self._sources: list[tuple[Mapping[str, str], Source]] = []
        self._server: asyncio.Server | None = None
        self._lag_task: asyncio.Task[None] | None = None
        self._connections = 0
        self._token: str | None = None

    def require_token(self, configs: Configs) -> None:
        """Only scrapes with `kshare.metrics.bearer.token` are answered; without it and an authorizer, all are.

        Metrics name topics, groups and addresses: what ACLs keep from strangers.
        """
        token = configs.text("kshare.metrics.bearer.token")
        self._token = token if token or configs.text("authorizer.class.name") else None

    def add_node(self, role: str, node_id: int, source: Source, problems: Callable[[], list[str]]) -> None:
        """Adds a node's metrics and its health; `problems` is called at each scrape."""
        labels = {"node_id": str(node_id)} if self._has_several_nodes else {}
        self._sources.append((labels, source))
        self._process.nodes.append(MeasuredHealth(role, node_id, problems))

    def add_network(self, statistics: CallStatistics) -> None:
        """Adds the calls of a network; from now on this clock measures their durations."""
        statistics.now = self.now
        self._process.networks.append(statistics)

    def add_memory(self, memory: MemoryReturn) -> None:
        """Adds the process's memory budget and its caches."""
        self._process.memory = memory

    def add_data_directory(self, directory: Path) -> None:
        """Adds the free space of the file system on which the process keeps its data."""
        self._process.data_directory = directory

    def add_role_certificate(self, tls: ExchangeTls | None) -> None:
        """Adds the expiry of the certificate that the process shows to other roles, if it has one."""
        self._process.role_tls = tls

    async def serve(self, listen: str) -> str:
        """Serves GET /metrics at `listen` ("host:port") until `stop`; returns the address that was bound."""
        _python_metrics()  # the first scrape need not wait for the import
        host, _, port = listen.rpartition(":")
        every = every_address_socket(host, int(port))
        self._server = await asyncio.start_server(
            self._answer,
            host.strip("[]") if every is None else None,
            int(port) if every is None else None,
            sock=every,
            limit=16 * 1024,
        )
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
            self._process.loop_lag.observe(max(0.0, loop.time() - due))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_LIMIT:
                async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(RESPONSE_TIMEOUT_MS / 1000):
                    writer.write(await self._response(head.split(b"\r\n")))
                    writer.close()
                    await writer.wait_closed()
        except TimeoutError:
            # `close` would keep the socket and the response until the client has read all of it.
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has disconnected, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    async def render(self, written_as: Format = Format.TEXT) -> bytes:
        """All metrics."""
        for source in (*(source for _, source in self._sources), self._process):
            if isinstance(source, PreparedSource):
                await self._prepare(source)
        parts = [_python_metrics()(written_as)]
        lines: list[str] = []
        for family, rows in sorted(self._read().items(), key=lambda item: item[0].name):
            for line in lines_of(family, rows, written_as):
                lines.append(line)
                if len(lines) >= LINES_PER_TURN:
                    parts.append("".join(lines).encode())
                    lines.clear()
                    await asyncio.sleep(0)
        if written_as is Format.OPEN_METRICS:
            lines.append(OPEN_METRICS_END)
        return b"".join([*parts, "".join(lines).encode()])

    def _read(self) -> dict[Family, list[tuple[Mapping[str, str], Row]]]:
        """The samples of all sources; the rows of all nodes are in one family."""
        found: dict[Family, list[tuple[Mapping[str, str], Row]]] = {}
        for labels, source in [*self._sources, (NO_LABELS, self._process)]:
            readings = Readings()
            try:
                source.read(readings)
            except Exception:  # one failing source must not hide the others
                self._process.read_failures += 1
                _logger.exception("reading metrics failed, the response leaves some out")
            for family, rows in readings.rows.items():
                found.setdefault(family, []).extend([(labels, row) for row in rows])
        return found

    async def _prepare(self, source: PreparedSource) -> None:
        try:
            await source.prepare()
        except Exception:  # one failing source must not hide the others
            self._process.read_failures += 1
            _logger.exception("preparing metrics failed")

    async def _response(self, head: Sequence[bytes]) -> bytes:
        """`head`: the request line and the headers."""
        method, _, rest = head[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method == b"GET" and path == b"/metrics":
            if not self._is_allowed(head[1:]):
                return _http("401 Unauthorized", _PLAIN_TEXT, b"needs kshare.metrics.bearer.token as a Bearer token\n")
            written_as, content_type = _negotiated(head[1:])
            return _http("200 OK", content_type, await self.render(written_as))
        return _http("404 Not Found", _PLAIN_TEXT, b"only GET /metrics is served here\n")

    def _is_allowed(self, headers: Sequence[bytes]) -> bool:
        if self._token is None:
            return True
        given = _values(headers, b"authorization")
        wanted = b"Bearer " + self._token.encode()
        return bool(self._token) and len(given) == 1 and hmac.compare_digest(given[0], wanted)


@cache
def _python_metrics() -> Callable[[Format], bytes]:
    """A writer of the metrics of the operating system and the garbage collector.

    Only a process that serves metrics loads the library, because the start of a role is mostly imports.
    """
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics import exposition as open_metrics

    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)

    def write(written_as: Format) -> bytes:
        if written_as is Format.OPEN_METRICS:
            text: bytes = open_metrics.generate_latest(registry)  # type: ignore[no-untyped-call]
            return text.removesuffix(OPEN_METRICS_END.encode())
        return generate_latest(registry)

    return write


def _negotiated(headers: Sequence[bytes]) -> tuple[Format, str]:
    """The format that the header Accept asks for, and its content type: OpenMetrics wherever 1.0.0 is listed.

    Not by the library, whose choose_encoder raises for a version that is no number.
    """
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as open_metrics

    for accepted in b",".join(_values(headers, b"accept")).decode("latin-1").lower().split(","):
        media_type, *parameters = [part.strip() for part in accepted.split(";")]
        versions = [part for part in parameters if part.startswith("version=")]
        if media_type == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            return Format.OPEN_METRICS, open_metrics.CONTENT_TYPE_LATEST
    return Format.TEXT, exposition.CONTENT_TYPE_LATEST


def _values(headers: Sequence[bytes], wanted: bytes) -> list[bytes]:
    """The values of a header, whose name is `wanted` in lower case."""
    parts = (line.partition(b":") for line in headers)
    return [value.strip() for name, _, value in parts if name.strip().lower() == wanted]


def _http(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
