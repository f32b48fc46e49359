"""A cluster for a contract test: the one in memory, or a real one at an address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.port import Upstream
from support.upstream.memory_upstream import MemoryUpstream

IN_MEMORY = ""
"""Stands for the address of the cluster in memory."""


@asynccontextmanager
async def opened(bootstrap: str) -> AsyncIterator[Upstream]:
    """A client of the cluster; the one in memory is a new one each time."""
    if bootstrap == IN_MEMORY:
        yield MemoryUpstream()
        return
    addresses = [each.rpartition(":") for each in bootstrap.split(",")]
    cluster = Cluster([BrokerAddress(host, int(port)) for host, _, port in addresses], ClientSettings())
    try:
        yield cluster
    finally:
        await cluster.close()
