"""A client's way to an existing cluster that fails as it is told, for a cluster in memory and a real one alike.

`unavailable` is a network that is cut, for requests under way as well. `delay_ms` is how long a request takes to the
broker. `lose_answers`, `lose_requests`, `apply_late`: the next Produce requests to partition 0 take effect but are not
answered, take no effect, or take effect some time after their sender was told that the connection was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from kshare_upstream.connection import ConnectionLost
from kshare_upstream.port import REQUESTS, AResponse, ClusterView, Upstream
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.messages import Request

Answer = TypeVar("Answer")
LOST_ANSWER, LOST_REQUEST = -1, -2
"""Beside the delays of late requests, in milliseconds."""


class FaultyUpstream:
    """See the module's text. `pauses` are events, one of which is set while the whole cluster stands still."""

    def __init__(self, upstream: Upstream, is_paused: Callable[[], bool] = lambda: False) -> None:
        self._upstream = upstream
        self._is_paused = is_paused
        self._cut = asyncio.Event()
        self._faults: list[int] = []
        self._late: list[asyncio.Task[object]] = []
        self.delay_ms: Callable[[], int] = lambda: 0
        self.produced = 0
        """Produce requests to partition 0."""

    @property
    def unavailable(self) -> bool:
        return self._cut.is_set()

    @unavailable.setter
    def unavailable(self, value: bool) -> None:
        if value:
            self._cut.set()
        else:
            self._cut.clear()

    @property
    def has_faults(self) -> bool:
        return bool(self._faults)

    def lose_answers(self, count: int) -> None:
        self._faults.extend([LOST_ANSWER] * count)

    def lose_requests(self, count: int) -> None:
        self._faults.extend([LOST_REQUEST] * count)

    def apply_late(self, count: int, delay_ms: int) -> None:
        self._faults.extend([delay_ms] * count)

    async def wait_for_late(self) -> None:
        """Until every late request has taken effect."""
        if self._late:
            await asyncio.wait(self._late)

    async def close(self) -> None:
        close: Callable[[], Awaitable[None]] | None = getattr(self._upstream, "close", None)
        if close is not None:
            await close()

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        return await self._reach(lambda: self._upstream.describe(topics))

    async def versions(self) -> Mapping[int, VersionRange]:
        return await self._reach(self._upstream.versions)

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self._reach(lambda: self._upstream.ask_any(request, served))

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self._reach(lambda: self._upstream.ask_controller(request, served))

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        async def ask() -> AResponse:
            return await self._upstream.ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)

        if isinstance(request, ProduceRequest) and request.topic_data[0].partition_data[0].index == 0:
            self.produced += 1
            if self._faults:
                await self._fail(self._faults.pop(0), ask)
        return await self._reach(ask)

    async def leader_of(self, at: Name) -> int:
        return await self._reach(lambda: self._upstream.leader_of(at))

    def forget_leader(self, at: Name) -> None:
        self._upstream.forget_leader(at)

    async def _fail(self, fault: int, ask: Callable[[], Awaitable[object]]) -> None:
        if fault == LOST_ANSWER:
            await self._reach(ask)
        elif fault >= 0:

            async def later() -> object:
                await asyncio.sleep(fault / 1000)
                return await ask()

            self._late.append(asyncio.ensure_future(later()))
        raise ConnectionLost("the connection was lost")

    async def _reach(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer, unless the network is cut before it comes; nothing comes while the cluster stands still."""
        if delay_ms := self.delay_ms():
            await asyncio.sleep(delay_ms / 1000)
        while self._is_paused():
            await self._or_cut(asyncio.sleep(0.01))
        return await self._or_cut(ask())

    async def _or_cut(self, waited: Awaitable[Answer]) -> Answer:
        asking, cut = asyncio.ensure_future(waited), asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait([asking, cut], return_when=asyncio.FIRST_COMPLETED)
            if self._cut.is_set():
                raise ConnectionLost("the network is cut")
            return await asking
        finally:
            asking.cancel()
            cut.cancel()
