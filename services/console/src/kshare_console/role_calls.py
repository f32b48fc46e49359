"""Calls to coordinators and leaders: what the Kafka protocol has no request for.

They are allowed by the console's own certificate (role `administrator`), not by the user's: a caller checks what the
user may see or change before. Answers that many viewers need are kept for `KEPT_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from kshare_console import refusal
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import (
    DESCRIBE_NODES,
    DESCRIBE_PARTITIONS,
    DESCRIBE_SHARE_GROUP_TOTALS,
    DESCRIBE_SHARE_PARTITIONS,
    DESCRIBE_STATE_PARTITIONS,
    DRAIN_LEADER,
    DRAIN_SHARE_COORDINATOR,
    END_ACQUISITIONS,
)
from kshare_rpc.network import CallFailed, Channel, Method, Network, Request, Response

TIMEOUT_MS = 3_000
KEPT_S = 1.0
CHANNELS_LIMIT = 200
"""Channels that are kept; nodes that come and go with new addresses would leave theirs behind."""

Kept = TypeVar("Kept")
Totals = leader_pb2.DescribeShareGroupTotalsResponse


class RoleCalls:
    """See the module docstring. Every method raises Refusal."""

    def __init__(
        self, network: Network, coordinators: Sequence[str], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._network = network
        self.coordinators = tuple(coordinators)
        """The addresses of all coordinators."""
        self.active = ""
        """The coordinator that answered last."""
        self._now_s = now_s
        self._channels: dict[str, Channel] = {}
        self._kept: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def close(self) -> None:
        for _, task in self._kept.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._kept.values()), return_exceptions=True)
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    # The coordinator

    async def nodes(self) -> coordinator_pb2.DescribeNodesResponse:
        async def read() -> coordinator_pb2.DescribeNodesResponse:
            return await self._coordinator(DESCRIBE_NODES, coordinator_pb2.DescribeNodesRequest())

        return await self._shared("nodes", read)

    async def partitions(self, topics: Sequence[str] = ()) -> coordinator_pb2.DescribePartitionsResponse:
        """Leaders of the partitions of `topics`, of all topics if it is empty."""

        async def read() -> coordinator_pb2.DescribePartitionsResponse:
            request = coordinator_pb2.DescribePartitionsRequest(topic_names=topics)
            return await self._coordinator(DESCRIBE_PARTITIONS, request)

        return await self._shared(f"partitions {','.join(topics)}", read)

    async def state_partitions(self) -> coordinator_pb2.DescribeStatePartitionsResponse:
        async def read() -> coordinator_pb2.DescribeStatePartitionsResponse:
            request = coordinator_pb2.DescribeStatePartitionsRequest()
            return await self._coordinator(DESCRIBE_STATE_PARTITIONS, request)

        return await self._shared("state partitions", read)

    async def drain_leader(self, node_id: int) -> int:
        """Starts the drain; the partitions that are left."""
        request = coordinator_pb2.DrainLeaderRequest(node_id=node_id)
        return (await self._coordinator(DRAIN_LEADER, request)).partitions_left

    async def drain_share_coordinator(self, node_id: int) -> None:
        """Starts the drain."""
        await self._coordinator(DRAIN_SHARE_COORDINATOR, coordinator_pb2.DrainShareCoordinatorRequest(node_id=node_id))

    async def coordinator_states(self) -> dict[str, str]:
        """By address: active, standby, or why it does not answer."""

        async def one(address: str) -> str:
            try:
                request = coordinator_pb2.DescribeNodesRequest()
                answer, _ = await self._channel(address).call(DESCRIBE_NODES, request, timeout_ms=TIMEOUT_MS)
            except CallFailed as failure:
                return str(failure) or "no answer"
            return "standby" if is_refused(answer) else "active"

        async def read() -> dict[str, str]:
            states = await asyncio.gather(*map(one, self.coordinators))
            return dict(zip(self.coordinators, states, strict=True))

        return await self._shared("coordinators", read)

    async def _coordinator(self, method: Method[Request, Response], request: Request) -> Response:
        """The active coordinator's response; the one that answered last is asked first."""
        problems: list[str] = []
        for address in sorted(self.coordinators, key=lambda each: each != self.active):
            try:
                answer, _ = await self._channel(address).call(method, request, timeout_ms=TIMEOUT_MS)
            except CallFailed as failure:
                problems.append(f"the coordinator at {address} did not answer: {failure}")
                continue
            if is_refused(answer):
                problems.append(f"the coordinator at {address} is not the active one")
                continue
            self.active = address
            code = int(getattr(answer, "error_code", 0))
            refusal.check(code, method.name, str(getattr(answer, "error_message", "")))
            return answer
        raise refusal.unavailable("; ".join(problems) or "no coordinator is known")

    # Leaders

    async def describe_share_partitions(
        self, leader: str, request: leader_pb2.DescribeSharePartitionsRequest
    ) -> leader_pb2.DescribeSharePartitionsResponse:
        return await self._leader(leader, DESCRIBE_SHARE_PARTITIONS, request)

    async def end_acquisitions(
        self, leader: str, request: leader_pb2.EndAcquisitionsRequest
    ) -> leader_pb2.EndAcquisitionsResponse:
        answer = await self._leader(leader, END_ACQUISITIONS, request, timeout_ms=10 * TIMEOUT_MS)
        refusal.check(answer.error_code, f"offsets {request.first_offset}-{request.last_offset}", answer.error_message)
        return answer

    async def totals(self, leaders: Iterable[str]) -> dict[str, Totals | str]:
        """By leader's address: its totals, or why it does not answer."""

        async def one(leader: str) -> Totals | str:
            try:
                return await self._leader(
                    leader, DESCRIBE_SHARE_GROUP_TOTALS, leader_pb2.DescribeShareGroupTotalsRequest()
                )
            except refusal.Refusal as problem:
                return problem.words

        async def read() -> dict[str, Totals | str]:
            addresses = list(leaders)
            answers = await asyncio.gather(*map(one, addresses))
            return dict(zip(addresses, answers, strict=True))

        return await self._shared("totals", read)

    async def _leader(
        self, leader: str, method: Method[Request, Response], request: Request, *, timeout_ms: int = TIMEOUT_MS
    ) -> Response:
        try:
            answer, _ = await self._channel(leader).call(method, request, timeout_ms=timeout_ms)
        except CallFailed as failure:
            raise refusal.unavailable(f"the leader at {leader} did not answer: {failure}") from None
        return answer

    def _channel(self, address: str) -> Channel:
        found = self._channels.get(address)
        if found is None:
            if len(self._channels) >= CHANNELS_LIMIT:
                oldest = self._channels.pop(next(iter(self._channels)))
                asyncio.get_running_loop().create_task(oldest.close())
            found = self._channels[address] = self._network.connect(address)
        return found

    async def _shared(self, name: str, read: Callable[[], Awaitable[Kept]]) -> Kept:
        """The answer that is under way or not older than KEPT_S, else a new one. Failures are not kept."""
        now_s = self._now_s()
        for other in [key for key, (at_s, task) in self._kept.items() if task.done() and now_s - at_s > KEPT_S]:
            del self._kept[other]
        kept = self._kept.get(name)
        if kept is None or _has_failed(kept[1]):
            task = asyncio.ensure_future(read())
            task.add_done_callback(_note_failure)
            kept = self._kept[name] = (now_s, task)
        found: Kept = await asyncio.shield(kept[1])
        return found


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _note_failure(task: asyncio.Task[Any]) -> None:
    """Takes note of a failure, which every waiter gets, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()
