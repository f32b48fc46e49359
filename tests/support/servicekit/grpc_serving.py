"""A role's service at an address of the real network, for commands that are tested against a scripted role."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kshare.addresses import Address
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Service

START_TIMEOUT_S = 10


@contextmanager
def grpc_serving(service: Service) -> Iterator[Address]:
    """Served by an event loop in a thread of its own."""
    started: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_up = threading.Event()

    async def serve() -> None:
        server = await GrpcNetwork().serve("127.0.0.1:0", [service])
        stop = asyncio.Event()
        started.append((server.address, asyncio.get_running_loop(), stop))
        is_up.set()
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(START_TIMEOUT_S)
    address, loop, stop = started[0]
    try:
        host, _, port = address.rpartition(":")
        yield Address(host, int(port))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
