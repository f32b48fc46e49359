"""A leader node's metrics of topics, disk and calls, by value after known operations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kshare_core.errors import ErrorCode
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import COORDINATOR, FETCH, PRODUCE, REGISTER_NODE, WATCH_CATALOG
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Service
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_runtime.rocks_store import RocksStore
from support.leader.log.leader_logs import BROKER, NODE_ID, TOPIC, StillClock, topic
from support.servicekit.scraped import Scraped, measured, scraped
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

COORDINATOR_ADDRESS = "coordinator:1"
BATCH = build_batch([b"a", b"b", b"c"])
TOPIC_NAME = TOPIC.decode()
FETCH_CALL = {"service": "Leader", "method": "Fetch"}


class OneTopic:
    """A coordinator whose catalog has one topic until it is told otherwise."""

    def __init__(self) -> None:
        self.nodes: list[coordinator_pb2.Node] = []
        self.topics = [topic()]
        self.version = 1

    def service(self) -> Service:
        return Service(COORDINATOR, {REGISTER_NODE: self._register, WATCH_CATALOG: self._watch})

    async def _register(self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview) -> Any:
        self.nodes.append(request.node)
        return coordinator_pb2.RegisterNodeResponse(node_epoch=1, lease_ms=10_000)

    async def _watch(self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview) -> Any:
        if request.after_version == self.version:
            await asyncio.sleep(0.5)
        return coordinator_pb2.WatchCatalogResponse(
            version=self.version, full=True, topics=self.topics, nodes=self.nodes, cluster_id="cluster"
        )


class MeasuredNode:
    """A leader with its metrics."""

    def __init__(self, open_store: Callable[[str], KeyValueStore]) -> None:
        self.network = InProcessNetwork()
        self.coordinator = OneTopic()
        self.metrics = measured()
        self.metrics.add_network(self.network.statistics)
        self.node = LeaderNode(
            environment=Environment(clock=StillClock(), random=random.Random(1), open_store=open_store),
            network=self.network,
            settings=LeaderSettings(
                node_id=NODE_ID, listen="leader:0", coordinator_address=COORDINATOR_ADDRESS, configs=BROKER
            ),
        )
        self.node.register_metrics(self.metrics)

    async def start(self) -> None:
        await self.network.serve(COORDINATOR_ADDRESS, [self.coordinator.service()])
        await self.node.start()

    async def produce(self, partition: int = 0) -> int:
        """The error code."""
        request = leader_pb2.ProduceRequest(acks=-1)
        request.partitions.add(topic_id=TOPIC, partition=partition, records_length=len(BATCH))
        channel = self.network.connect(self.node.address)
        answer, _ = await channel.call(PRODUCE, request, (BATCH,), timeout_ms=1_000)
        return answer.partitions[0].error_code

    async def fetch(self, *, fetch_offset: int = 0, max_wait_ms: int = 0) -> int:
        """The bytes that came."""
        request = leader_pb2.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20)
        request.partitions.add(
            topic_id=TOPIC,
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=fetch_offset,
            partition_max_bytes=1 << 20,
        )
        channel = self.network.connect(self.node.address)
        _, payload = await channel.call(FETCH, request, timeout_ms=10_000)
        return len(payload)

    async def scrape(self) -> Scraped:
        return await scraped(self.metrics)


def test_what_came_in_and_went_out_of_a_topic() -> None:
    async def test() -> None:
        leader = MeasuredNode(MemoryDisk().open_store)
        before = await leader.scrape()
        assert before.value("node_healthy", role="leader", node_id="1") == 0
        await leader.start()
        for partition in (0, 0, 1):
            assert await leader.produce(partition) == 0
        assert await leader.fetch() == 2 * len(BATCH)
        found = await leader.scrape()
        assert found.value("leader_topic_records_in_total", topic=TOPIC_NAME) == 9
        assert found.value("leader_topic_batches_in_total", topic=TOPIC_NAME) == 3
        assert found.value("leader_topic_bytes_in_total", topic=TOPIC_NAME) == 3 * len(BATCH)
        assert found.value("leader_topic_bytes_out_total", topic=TOPIC_NAME, call="fetch") == 2 * len(BATCH)
        assert found.value("leader_topic_bytes_out_total", topic=TOPIC_NAME, call="share_fetch") == 0
        assert found.value("leader_topic_records_out_total", topic=TOPIC_NAME, call="fetch") == 6
        assert found.value("leader_topic_log_bytes", topic=TOPIC_NAME) == 3 * len(BATCH)
        assert found.value("leader_topic_partitions", topic=TOPIC_NAME) == 2
        assert found.value("leader_offline_partitions") == 0
        assert found.value("leader_log_write_duration_seconds_count") == 3
        assert found.value("node_healthy", role="leader", node_id="1") == 1
        leader.coordinator.topics = []
        leader.coordinator.version = 2
        await asyncio.sleep(1)
        assert not (await leader.scrape()).labels("leader_topic_log_bytes", "topic")
        await leader.node.stop(100)

    VirtualLoop().run(test())


def test_a_disk_that_refuses_shows() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        leader = MeasuredNode(disk.open_store)
        await leader.start()
        disk.fail_next_writes(1)
        assert await leader.produce() == ErrorCode.KAFKA_STORAGE_ERROR
        found = await leader.scrape()
        assert found.value("leader_log_write_failures_total") == 1
        assert found.value("node_healthy", role="leader", node_id="1") == 0
        assert found.value("node_problems", role="leader", node_id="1") == 1
        assert found.total("leader_topic_records_in_total") == 0
        await leader.node.stop(100)

    VirtualLoop().run(test())


def test_calls_are_counted_on_both_sides_with_their_durations() -> None:
    async def test() -> None:
        leader = MeasuredNode(MemoryDisk().open_store)
        await leader.start()
        await leader.fetch()
        waiting = asyncio.ensure_future(leader.fetch(max_wait_ms=300))
        await asyncio.sleep(0.1)
        found = await leader.scrape()
        assert found.value("rpc_client_calls_under_way", **FETCH_CALL) == 1
        assert found.value("rpc_server_calls_under_way", **FETCH_CALL) == 1
        await waiting
        found = await leader.scrape()
        for side in ("client", "server"):
            assert found.value(f"rpc_{side}_call_duration_seconds_count", **FETCH_CALL) == 2
            assert 0.299 < found.value(f"rpc_{side}_call_duration_seconds_sum", **FETCH_CALL) < 0.31
            assert found.value(f"rpc_{side}_calls_under_way", **FETCH_CALL) == 0
        await leader.node.stop(100)

    VirtualLoop().run(test())


def test_figures_of_rocksdb(tmp_path: Path) -> None:
    async def test() -> None:
        leader = MeasuredNode(lambda name: RocksStore(tmp_path / name))
        await leader.start()
        for _ in range(20):
            assert await leader.produce() == 0
        found = await leader.scrape()
        assert found.value("leader_rocksdb_memtable_bytes") > 20 * len(BATCH)
        assert found.value("leader_rocksdb_background_errors") == 0
        for figure in ("table_bytes", "pending_compaction_bytes", "block_cache_bytes", "running_compactions"):
            assert found.value(f"leader_rocksdb_{figure}") >= 0
        await leader.node.stop(100)
        assert not (await leader.scrape()).labels("leader_share_lag_records", "group")

    VirtualLoop().run(test())
