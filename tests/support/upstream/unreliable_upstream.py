"""One client's unreliable way to a cluster in memory: requests and responses are late, lost, or refused for a while.

A request whose connection is lost may still take effect, and later than the client's next one: a broker works off what
it received. Time is the event loop's, so that a simulation decides it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.port import REQUESTS, AResponse, ClusterView
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.produce import ProduceResponse
from kshare_wire.messages import Request
from support.upstream.memory_upstream import MemoryUpstream

REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors that a broker may answer to Produce although the batch is, or will be, in the log."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities by request, and delays in seconds."""

    loss: float = 0.05
    refusal: float = 0.05
    long_delay: float = 0.05
    delay_s: float = 0.02
    long_delay_s: float = 3.0


class UnreliableUpstream:
    """A client of `cluster`; its random numbers are those of `chance`."""

    def __init__(self, cluster: MemoryUpstream, chance: random.Random, weather: Weather) -> None:
        self._cluster = cluster
        self._chance = chance
        self._weather = weather
        self._under_way: set[asyncio.Task[object]] = set()

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        return await self._cluster.describe(topics)

    async def versions(self) -> Mapping[int, VersionRange]:
        return await self._cluster.versions()

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
        async def arrive(delay_s: float) -> AResponse:
            await asyncio.sleep(delay_s)
            return await self._cluster.ask_broker(node_id, request, served)

        if self._chance.random() < self._weather.loss:
            if self._chance.random() < 0.5:
                task: asyncio.Task[object] = asyncio.ensure_future(arrive(self._delay_s()))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self._delay_s())
            raise ConnectionLost("the connection was lost")
        answer = await arrive(self._delay_s())
        await asyncio.sleep(self._delay_s())
        if isinstance(request, ProduceRequest) and self._chance.random() < self._weather.refusal:
            assert isinstance(answer, ProduceResponse)
            partition = self._chance.choice([each for topic in answer.responses for each in topic.partition_responses])
            partition.error_code = self._chance.choice(REFUSALS)
        return answer

    async def leader_of(self, at: Name) -> int:
        return await self._cluster.leader_of(at)

    def forget_leader(self, at: Name) -> None:
        self._cluster.forget_leader(at)

    def _delay_s(self) -> float:
        is_long = self._chance.random() < self._weather.long_delay
        return self._chance.random() * (self._weather.long_delay_s if is_long else self._weather.delay_s)
