"""What a leader's health says of brokers that are asked for the ends of logs, and of partitions without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kshare_leader.upstream.log_fetcher import FetchLimits
from kshare_leader.upstream.upstream_logs import ENDS_INTERVAL_S, UpstreamLogs
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.port import REQUESTS, AResponse, LeaderUnknown, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import NODE_ID, MemoryUpstream

KSHARE_NODE = 9
OLD_BROKER = 3
TOPICS = ("orders", "other")


class TwoBrokers(MemoryUpstream):
    """Broker OLD_BROKER leads all partitions until `is_gone`, then NODE_ID does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False
        self.leaderless: set[str] = set()
        self._known: dict[UpstreamPartitionName, int] = {}

    async def leader_of(self, at: UpstreamPartitionName) -> int:
        if at.topic in self.leaderless:
            raise LeaderUnknown(f"partition {at} has no leader")
        return self._known.setdefault(at, NODE_ID if self.is_gone else OLD_BROKER)

    def forget_leader(self, at: UpstreamPartitionName) -> None:
        self._known.pop(at, None)

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if node_id == OLD_BROKER and self.is_gone:
            raise ConnectionLost(f"broker {OLD_BROKER} is not among the cluster's brokers")
        return await super().ask_broker(NODE_ID, request, served, wait_ms=wait_ms, purpose=purpose)


def view_of(upstream: MemoryUpstream, *names: str) -> CatalogView:
    topics: dict[bytes, coordinator_pb2.Topic] = {}
    for name in names:
        topic = topics[upstream.topic_ids[name]] = coordinator_pb2.Topic(topic_id=upstream.topic_ids[name], name=name)
        topic.partitions.add(partition=0, leader_node_id=KSHARE_NODE, leader_epoch=1)
    return CatalogView(version=1, topics_by_id=topics)


def run(body: Callable[[TwoBrokers, UpstreamLogs], Awaitable[None]]) -> None:
    async def test() -> None:
        upstream = TwoBrokers()
        for name in TOPICS:
            await create_topic(upstream, name, partitions=1, replicas=1, configs={})
        logs = UpstreamLogs(
            upstream=upstream,
            node_id=KSHARE_NODE,
            limits=FetchLimits(),
            window_limit_bytes=1 << 20,
            partition_window_limit_bytes=1 << 16,
            has_lease=lambda: True,
            report=lambda text: None,
        )
        logs.start()
        logs.on_view(CatalogView(), view_of(upstream, *TOPICS))
        await asyncio.sleep(2 * ENDS_INTERVAL_S)
        assert logs.problems() == []
        try:
            await body(upstream, logs)
        finally:
            await logs.close()

    loop = VirtualLoop(time_limit=600.0)
    loop.run(test())
    assert loop.problems == []


def test_a_broker_that_was_removed_is_no_problem_for_ever() -> None:
    async def body(upstream: TwoBrokers, logs: UpstreamLogs) -> None:
        upstream.is_gone = True
        await asyncio.sleep(ENDS_INTERVAL_S)
        assert [text for text in logs.problems() if f"broker {OLD_BROKER}" in text]
        await asyncio.sleep(2 * ENDS_INTERVAL_S)
        assert logs.problems() == []

    run(body)


def test_a_partition_without_a_leader_is_no_problem_after_it_was_deleted() -> None:
    async def body(upstream: TwoBrokers, logs: UpstreamLogs) -> None:
        upstream.leaderless.add("other")
        await asyncio.sleep(2 * ENDS_INTERVAL_S)
        assert [text for text in logs.problems() if "other-0 has no leader" in text]
        logs.on_view(view_of(upstream, *TOPICS), view_of(upstream, "orders"))
        assert logs.problems() == []
        await asyncio.sleep(2 * ENDS_INTERVAL_S)
        assert logs.problems() == []

    run(body)
