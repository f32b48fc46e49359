"""A cluster for a contract test: the one in memory, simulated brokers, or a real one at an address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.port import Upstream
from support.simulation.loop import VirtualLoop
from support.simulation.upstream.brokers import simulated_cluster
from support.upstream.memory_upstream import MemoryUpstream

IN_MEMORY = ""
"""Stands for the address of the cluster in memory."""
SIMULATED = "simulated"
"""Stands for the addresses of simulated brokers."""


@asynccontextmanager
async def opened(bootstrap: str) -> AsyncIterator[Upstream]:
    """A client of the cluster; the one in memory is a new one each time."""
    if bootstrap == IN_MEMORY:
        yield MemoryUpstream()
        return
    if bootstrap == SIMULATED:
        async with simulated_cluster(1) as (client, _):
            yield client
        return
    addresses = [each.rpartition(":") for each in bootstrap.split(",")]
    cluster = Cluster([BrokerAddress(host, int(port)) for host, _, port in addresses], ClientSettings())
    try:
        yield cluster
    finally:
        await cluster.close()


def run_with(bootstrap: str, main: Coroutine[object, object, None]) -> None:
    """Runs what opened a cluster: in virtual time with simulated brokers."""
    if bootstrap == SIMULATED:
        VirtualLoop().run(main)
    else:
        asyncio.run(main)
