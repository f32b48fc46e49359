"""A client's way to a cluster that stands still for a while, as that of a process under SIGSTOP.

Requests that the cluster has received take effect meanwhile; their responses are read when the process goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from kshare_upstream.port import REQUESTS, AResponse, ClusterView, Upstream
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request


class PausableUpstream:
    """Over another way to the cluster."""

    def __init__(self, way: Upstream) -> None:
        self._way = way
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    async def pause_at_random(self, chance: random.Random, *, longest_s: float = 6.0) -> None:
        while True:
            await asyncio.sleep(chance.random() * 4 * longest_s)
            self._goes_on.clear()
            await asyncio.sleep(chance.random() * longest_s)
            self._goes_on.set()

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        return await self._way.describe(topics)

    async def versions(self) -> Mapping[int, VersionRange]:
        return await self._way.versions()

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self.ask_broker(1, request, served)

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self.ask_broker(1, request, served)

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        await self._goes_on.wait()
        try:
            return await self._way.ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)
        finally:
            await self._goes_on.wait()

    async def leader_of(self, at: Name) -> int:
        return await self._way.leader_of(at)

    def forget_leader(self, at: Name) -> None:
        self._way.forget_leader(at)

    async def close(self) -> None:
        """The cluster in memory stays."""
