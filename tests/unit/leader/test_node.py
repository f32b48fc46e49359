"""The leader's node in virtual time: registration, the lease, serving, and starting again on the same disk."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from kshare_core.errors import ErrorCode
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import (
    COORDINATOR,
    DEREGISTER_NODE,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    REGISTER_NODE,
    WATCH_CATALOG,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Service
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment
from support.leader.log.leader_logs import BROKER, NODE_ID, TOPIC, StillClock, topic
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

COORDINATOR_ADDRESS = "coordinator:1"
LEASE_MS = 10_000


class ScriptedCoordinator:
    """Registers every node and shows one topic; while `silent`, a watch is never answered."""

    def __init__(self) -> None:
        self.registered: list[coordinator_pb2.Node] = []
        self.highest_epochs: list[int] = []
        """What the nodes reported, at each registration."""
        self.cluster_id = "cluster"
        self.left: list[str] = []
        self.silent = False

    def service(self) -> Service:
        return Service(
            COORDINATOR, {REGISTER_NODE: self._register, DEREGISTER_NODE: self._deregister, WATCH_CATALOG: self._watch}
        )

    async def _deregister(self, request: coordinator_pb2.DeregisterNodeRequest, payload: memoryview) -> Any:
        self.left.append(request.incarnation)
        return coordinator_pb2.DeregisterNodeResponse()

    async def _register(self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview) -> Any:
        self.registered.append(request.node)
        self.highest_epochs.append(request.highest_leader_epoch)
        return coordinator_pb2.RegisterNodeResponse(node_epoch=len(self.registered), lease_ms=LEASE_MS)

    async def _watch(self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview) -> Any:
        if request.after_version == 0:
            return coordinator_pb2.WatchCatalogResponse(
                version=1, full=True, topics=[topic()], nodes=self.registered, cluster_id=self.cluster_id
            )
        await asyncio.sleep(3600 if self.silent else request.max_wait_ms / 1000)
        return coordinator_pb2.WatchCatalogResponse(version=1)


class Bench:
    """A network with a scripted coordinator, and one leader's disk."""

    def __init__(self) -> None:
        self.network = InProcessNetwork()
        self.coordinator = ScriptedCoordinator()
        self.disk = MemoryDisk()

    async def start(self) -> LeaderNode:
        if not self.coordinator.registered:
            await self.network.serve(COORDINATOR_ADDRESS, [self.coordinator.service()])
        node = LeaderNode(
            environment=Environment(clock=StillClock(), random=random.Random(1), open_store=self.disk.open_store),
            network=self.network,
            settings=LeaderSettings(
                node_id=NODE_ID, listen="leader:0", coordinator_address=COORDINATOR_ADDRESS, configs=BROKER
            ),
        )
        await node.start()
        return node

    async def call(self, node: LeaderNode, method: Any, request: Any, payload: tuple[bytes, ...] = ()) -> Any:
        channel = self.network.connect(node.address)
        answer, records = await channel.call(method, request, payload, timeout_ms=60_000)
        await channel.close()
        return answer.partitions[0], bytes(records)

    async def produce(self, node: LeaderNode) -> Any:
        batch = build_batch([b"a", b"b"])
        partition = leader_pb2.ProduceRequest.Partition(topic_id=TOPIC, partition=0, records_length=len(batch))
        answer, _ = await self.call(node, PRODUCE, leader_pb2.ProduceRequest(acks=-1, partitions=[partition]), (batch,))
        return answer


def fetch_request(max_wait_ms: int, fetch_offset: int = 0) -> leader_pb2.FetchRequest:
    partition = leader_pb2.FetchRequest.Partition(
        topic_id=TOPIC, partition=0, current_leader_epoch=-1, fetch_offset=fetch_offset, partition_max_bytes=1 << 20
    )
    return leader_pb2.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, partitions=[partition])


def latest() -> leader_pb2.ListOffsetsRequest:
    partition = leader_pb2.ListOffsetsRequest.Partition(
        topic_id=TOPIC, partition=0, current_leader_epoch=-1, timestamp=-1
    )
    return leader_pb2.ListOffsetsRequest(partitions=[partition])


def test_a_leader_serves_what_it_was_given_and_has_it_after_a_restart() -> None:
    async def test() -> None:
        bench = Bench()
        node = await bench.start()
        registered = bench.coordinator.registered[0]
        assert (registered.role, registered.node_id) == (coordinator_pb2.ROLE_LEADER, NODE_ID)
        assert registered.rpc_address == node.address and registered.incarnation
        assert node.problems() == []
        assert (await bench.produce(node)).base_offset == 0
        _, served = await bench.call(node, FETCH, fetch_request(0))
        await node.stop(1000)
        assert bench.coordinator.left == [], "its partitions wait for it"
        again = await bench.start()
        assert (await bench.produce(again)).base_offset == 2
        found, served_again = await bench.call(again, FETCH, fetch_request(0))
        assert served and served_again.startswith(served) and found.high_watermark == 4
        found, _ = await bench.call(again, LIST_OFFSETS, latest())
        assert found.offset == 4
        await again.stop(1000)

    VirtualLoop().run(test())


def test_a_leader_reports_the_epoch_of_its_registration_although_nothing_was_produced() -> None:
    """States have it, and a coordinator whose store is an older copy would give a lower one."""

    async def test() -> None:
        bench = Bench()
        for _ in range(3):
            node = await bench.start()
            await node.stop(1000)
        assert bench.coordinator.highest_epochs == [0, 1, 2]
        bench.coordinator.cluster_id = "another cluster"
        for _ in range(2):
            node = await bench.start()
            assert node.problems()
            await node.stop(1000)
        assert bench.coordinator.highest_epochs[3:] == [3, 3], "nothing is written to a store of another cluster"

    VirtualLoop().run(test())


def test_a_leader_that_may_have_lost_its_lease_does_not_answer() -> None:
    async def test() -> None:
        bench = Bench()
        node = await bench.start()
        bench.coordinator.silent = True
        await bench.produce(node)
        await asyncio.sleep(0.9 * LEASE_MS / 1000 - 0.001)  # the margin is for clocks of different rates
        assert (await bench.produce(node)).error_code == ErrorCode.NONE
        await asyncio.sleep(0.001)
        assert (await bench.produce(node)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for method, request in ((FETCH, fetch_request(60_000)), (LIST_OFFSETS, latest())):
            found, records = await bench.call(node, method, request)
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and not records
        assert "lease" in node.problems()[0]
        bench.coordinator.silent = False
        await asyncio.sleep(20)
        answer = await bench.produce(node)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 4)
        assert node.problems() == []
        await node.stop(1000)

    VirtualLoop().run(test())


def test_a_fetch_that_outwaits_the_lease_gets_no_records() -> None:
    async def test() -> None:
        bench = Bench()
        node = await bench.start()
        bench.coordinator.silent = True
        found, _ = await bench.call(node, FETCH, fetch_request(LEASE_MS + 1000))
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.stop(1000)

    VirtualLoop().run(test())


def test_stopping_ends_waiting_fetches_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        node = await bench.start()
        waiting = asyncio.ensure_future(bench.call(node, FETCH, fetch_request(50_000)))
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await node.stop(30_000)
        found, _ = await waiting
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert loop.time() - before < 1

    VirtualLoop().run(test())
