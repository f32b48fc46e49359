"""The response of /metrics."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kshare_core.distribution import Distribution
from kshare_servicekit import metrics_server
from kshare_servicekit.metric_families import Readings, counter, gauge, histogram
from kshare_servicekit.metrics_server import LAG_INTERVAL_MS, Metrics
from support.servicekit.scraped import scraped

CALLS = counter("calls", 'Calls, "all" of them.', "method")
DURATION = histogram("duration_seconds", "Of calls.")
RUNS = gauge("runs", "Runs of offsets.")


class Counts:
    def __init__(self) -> None:
        self.durations = Distribution((0.1, 0.5))

    def read(self, readings: Readings) -> None:
        readings.add(CALLS, 3, "ShareFetch")
        readings.add(RUNS, 7)
        readings.add(DURATION, self.durations)


async def fetch(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_metrics_are_served() -> None:
    async def main() -> None:
        found = Metrics()
        found.add_node("leader", 1, Counts(), list)
        address = await found.serve("127.0.0.1:0")
        answer = await fetch(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b'kshare_calls_total{method="ShareFetch"} 3.0\n' in body
        assert b"kshare_runs 7.0\n" in body
        assert b"process_resident_memory_bytes " in body
        assert b"python_gc_collections_total" in body
        assert b"kshare_event_loop_lag_seconds_bucket" in body
        assert (await fetch(address, b"GET /other HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await fetch(address, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert await fetch(address, b"x" * 100_000) == b""
        assert (await fetch(address, b"GET /metrics?a=b HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await found.stop()

    asyncio.run(main())


class LongText:
    """Metrics of more bytes than the kernel's buffers of a connection hold."""

    def __init__(self) -> None:
        self._family = gauge("long", "x" * (16 * 1024 * 1024))

    def read(self, readings: Readings) -> None:
        readings.add(self._family, 1)


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "RESPONSE_TIMEOUT_MS", 500)

    async def main() -> None:
        found = Metrics()
        found.add_node("leader", 1, LongText(), list)
        host, _, port = (await found.serve("127.0.0.1:0")).rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, b"GET /metrics HTTP/1.1\r\n\r\n")
            answering = await answering_task()
            await asyncio.wait([answering])
            received = 0
            while piece := await loop.sock_recv(client, 1024 * 1024):
                received += len(piece)
        assert 0 < received < 16 * 1024 * 1024, "the response was dropped when its time was over"
        await found.stop()

    asyncio.run(main())


async def answering_task() -> asyncio.Task[None]:
    """The task that answers the only connection."""
    while True:
        for task in asyncio.all_tasks():
            if "Metrics._answer" in repr(task.get_coro()):
                return task
        await asyncio.sleep(0)


PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""Of Prometheus 3.5."""


def test_open_metrics_with_exemplars_are_served_where_the_scraper_asks_for_them() -> None:
    counts = Counts()
    counts.durations.observe(0.3)
    counts.durations.exemplify(0.3, f"00-{'a' * 32}-{'b' * 16}-01")
    counts.durations.observe(0.4)
    counts.durations.exemplify(0.4, f"00-{'c' * 32}-{'d' * 16}-01")
    counts.durations.observe(9.0)

    async def main() -> None:
        found = Metrics()
        found.add_node("leader", 1, counts, list)
        address = await found.serve("127.0.0.1:0")
        for accept in (PROMETHEUS_ACCEPTS, "application/openmetrics-text", "text/html, Application/OpenMetrics-Text"):
            request = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode()
            head, _, body = (await fetch(address, request)).partition(b"\r\n\r\n")
            assert b"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n" in head
            parsed = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
            families = {each.name: each for each in parsed}
            assert families["kshare_calls"].type == "counter"
            assert families["kshare_calls"].documentation == 'Calls, "all" of them.'
            assert families["process_cpu_seconds"].type == "counter"
            buckets = [each for each in families["kshare_duration_seconds"].samples if each.name.endswith("_bucket")]
            assert [each.value for each in buckets] == [0, 2, 3]
            assert buckets[0].exemplar is None and buckets[2].exemplar is None
            assert buckets[1].exemplar is not None, "the newest of its bucket"
            assert (buckets[1].exemplar.labels, buckets[1].exemplar.value) == ({"trace_id": "c" * 32}, 0.4)
        for accept in ("*/*", "text/plain;version=0.0.4", "application/openmetrics-text;version=abc"):
            request = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode()
            head, _, body = (await fetch(address, request)).partition(b"\r\n\r\n")
            assert b"Content-Type: text/plain; version=" in head
            assert b"# EOF" not in body and b"trace_id" not in body
        await found.stop()

    asyncio.run(main())


def test_a_blocked_event_loop_shows() -> None:
    async def main() -> None:
        found = Metrics()
        await found.serve("127.0.0.1:0")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        until = loop.time() + 2 * LAG_INTERVAL_MS / 1000
        while loop.time() < until:  # blocks on purpose
            pass
        await asyncio.sleep(0.01)
        late = (await scraped(found)).value("event_loop_lag_seconds_sum")
        assert late >= 0.9 * LAG_INTERVAL_MS / 1000
        await found.stop()

    asyncio.run(main())


def test_metrics_are_served_at_every_address_of_both_families() -> None:
    """asyncio's socket at [::] would take connections of IPv6 only, and that at 0.0.0.0 of IPv4 only."""

    async def main() -> None:
        found = Metrics()
        port = (await found.serve("[::]:0")).rpartition(":")[2]
        for host in ("127.0.0.1", "::1"):
            assert (await fetch(f"{host}:{port}", b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await found.stop()

        only = Metrics()
        address = await only.serve("[::1]:0")
        assert address.startswith("[::1]:")
        port = address.rpartition(":")[2]
        assert (await fetch(f"::1:{port}", b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await only.stop()

    asyncio.run(main())


def test_free_space_of_the_data_directory(tmp_path: Path) -> None:
    async def main() -> None:
        found = Metrics()
        directory = tmp_path / "store"
        found.add_data_directory(directory)
        assert (await scraped(found)).total("data_directory_size_bytes") == 0, "it is made later"
        directory.mkdir()
        now = await scraped(found)
        free = now.value("data_directory_free_bytes", directory=str(directory))
        size = now.value("data_directory_size_bytes", directory=str(directory))
        usage = shutil.disk_usage(directory)
        assert 0 < free < size <= usage.total
        assert abs(free - usage.free) < 0.1 * usage.total

    asyncio.run(main())
