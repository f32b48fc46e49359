"""The response of /metrics."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from kshare_servicekit.metric_families import Readings, counter, gauge
from kshare_servicekit.metrics_server import LAG_INTERVAL_MS, Metrics
from support.servicekit.scraped import scraped

CALLS = counter("calls", "Calls.", "method")
RUNS = gauge("runs", "Runs of offsets.")


class Counts:
    def read(self, readings: Readings) -> None:
        readings.add(CALLS, 3, "ShareFetch")
        readings.add(RUNS, 7)


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
