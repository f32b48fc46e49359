"""Share coordinators on an in-process network, under a catalog whose owners and moves a test sets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COMPLETE_STATE_PARTITION_MOVE,
    COORDINATOR,
    DRAIN_SHARE_COORDINATOR,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    TRANSFER_STATE_PARTITION,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Channel, Handler, Method, Service
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.reassignment.rows import StatePartitionRows
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from support.simulation.loop import VirtualLoop

COORDINATOR_ADDRESS = "coordinator:1"
TOPIC_ID = bytes(range(1, 17))
GROUP = "orders"
TIMEOUT_MS = 60_000
STATE_PARTITIONS = 2
SHARE_PARTITIONS = 12
CLUSTER = "cluster-one"
Owner = pb.StatePartitionOwner


def place(partition: int) -> int:
    """The state partition of a share-partition of the tests."""
    return state_partition_of(SharePartitionKey(GROUP, TOPIC_ID, partition), STATE_PARTITIONS)


class LoopClock:
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class ScriptedCatalog:
    """One version after the other, as the test sets them; keeps what it was asked."""

    def __init__(self) -> None:
        self.cluster_id = CLUSTER
        self.version = 1
        self.owners = {number: Owner(state_partition=number, node_id=1) for number in range(STATE_PARTITIONS)}
        self.nodes: dict[int, pb.Node] = {}
        self.completed: list[pb.CompleteStatePartitionMoveRequest] = []
        self.completion_error = ErrorCode.NONE
        self.drained: list[int] = []
        self._changed = asyncio.Event()

    def change(self, *owners: Owner) -> None:
        for owner in owners:
            self.owners[owner.state_partition] = owner
        self._publish()

    def _publish(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def service(self) -> Service:
        handlers: dict[Method[Any, Any], Handler] = {
            REGISTER_NODE: self._register,
            WATCH_CATALOG: self._watch,
            COMPLETE_STATE_PARTITION_MOVE: self._complete,
            DRAIN_SHARE_COORDINATOR: self._drain,
        }
        return Service(COORDINATOR, handlers)

    async def _register(self, request: pb.RegisterNodeRequest, payload: memoryview) -> pb.RegisterNodeResponse:
        self.nodes[request.node.node_id] = request.node
        self._publish()
        return pb.RegisterNodeResponse(node_epoch=1, lease_ms=9_000)

    async def _watch(self, request: pb.WatchCatalogRequest, payload: memoryview) -> pb.WatchCatalogResponse:
        if request.after_version == self.version:
            try:
                await asyncio.wait_for(self._changed.wait(), request.max_wait_ms / 1000)
            except TimeoutError:
                return pb.WatchCatalogResponse(version=self.version, cluster_id=self.cluster_id)
        return pb.WatchCatalogResponse(
            version=self.version,
            cluster_id=self.cluster_id,
            full=True,
            nodes_changed=True,
            nodes=list(self.nodes.values()),
            state_partition_count=STATE_PARTITIONS,
            state_partition_owners=[owner for _, owner in sorted(self.owners.items())],
        )

    async def _complete(
        self, request: pb.CompleteStatePartitionMoveRequest, payload: memoryview
    ) -> pb.CompleteStatePartitionMoveResponse:
        self.completed.append(request)
        return pb.CompleteStatePartitionMoveResponse(error_code=self.completion_error)

    async def _drain(
        self, request: pb.DrainShareCoordinatorRequest, payload: memoryview
    ) -> pb.DrainShareCoordinatorResponse:
        self.drained.append(request.node_id)
        return pb.DrainShareCoordinatorResponse()


class Peer:
    """One share coordinator that can be started again on its disk."""

    def __init__(self, peers: Peers, node_id: int) -> None:
        self._peers = peers
        self.node_id = node_id
        self.disk = MemoryDisk()
        self.store: KeyValueStore | None = None
        self.node = self._new_node()

    def _new_node(self) -> ShareCoordinatorNode:
        def open_store(name: str) -> KeyValueStore:
            self.store = self.disk.open_store(name)
            return self.store

        return ShareCoordinatorNode(
            environment=Environment(clock=LoopClock(), random=random.Random(self.node_id), open_store=open_store),
            network=self._peers.network,
            settings=ShareCoordinatorSettings(
                node_id=self.node_id,
                listen=f"share-coordinator-{self.node_id}:1",
                coordinator_address=COORDINATOR_ADDRESS,
                configs=Configs(PROCESS_CONFIGS),
                move_piece_bytes=self._peers.piece_bytes,
            ),
        )

    async def start(self) -> None:
        await self.node.start()

    async def restart(self) -> None:
        await self.node.stop(0)
        self.node = self._new_node()
        await self.node.start()

    @property
    def rows(self) -> StatePartitionRows:
        assert self.store is not None
        return StatePartitionRows(ChecksummedStore(self.store))

    def content(self, state_partition: int) -> dict[bytes, bytes]:
        """All rows of a state partition here."""
        return dict(self.rows.piece(state_partition, b"", 1 << 30)[0])

    def measure(self, name: str, direction: str, **labels: str) -> float:
        return self.node.move_metrics.value(f"state_partition_{name}", direction=direction, **labels)

    @property
    def channel(self) -> Channel:
        return self._peers.network.connect(self.node.address)

    async def initialize(self, *partitions: int) -> list[int]:
        request = messages.InitializeShareGroupStateRequest(group_id=GROUP)
        for partition in partitions:
            request.partitions.add(topic_id=TOPIC_ID, partition=partition, state_epoch=1, start_offset=0)
        answer, _ = await self.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return [result.error_code for result in answer.results]

    async def write(self, *partitions: int, start_offset: int) -> list[int]:
        request = messages.WriteShareGroupStateRequest(group_id=GROUP)
        for partition in partitions:
            request.partitions.add(
                topic_id=TOPIC_ID,
                partition=partition,
                state_epoch=1,
                leader_epoch=0,
                start_offset=start_offset,
                delivery_complete_count=0,
            )
        answer, _ = await self.channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return [result.error_code for result in answer.results]

    async def read(self, partition: int) -> tuple[int, int]:
        """Error code and start offset."""
        request = messages.ReadShareGroupStateRequest(group_id=GROUP)
        request.partitions.add(topic_id=TOPIC_ID, partition=partition, leader_epoch=-1)
        answer, _ = await self.channel.call(READ_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        (result,) = answer.results
        return result.error_code, result.start_offset

    async def transfer(
        self, state_partition: int, owner_epoch: int, *, after_key: bytes = b"", max_bytes: int = 1 << 20
    ) -> tuple[messages.TransferStatePartitionResponse, bytes]:
        request = messages.TransferStatePartitionRequest(
            state_partition=state_partition, owner_epoch=owner_epoch, after_key=after_key, max_bytes=max_bytes
        )
        answer, payload = await self.channel.call(TRANSFER_STATE_PARTITION, request, timeout_ms=TIMEOUT_MS)
        return answer, bytes(payload)


class Peers:
    """The catalog and share coordinators 1 and 2; all state partitions are node 1's at first."""

    def __init__(self, *, piece_bytes: int = 200) -> None:
        self.piece_bytes = piece_bytes
        self.network = InProcessNetwork()
        self.catalog = ScriptedCatalog()
        self.one, self.two = Peer(self, 1), Peer(self, 2)

    async def start(self) -> None:
        """Both are up, and node 1 has `SHARE_PARTITIONS` states with their number for start offset."""
        await self.network.serve(COORDINATOR_ADDRESS, [self.catalog.service()])
        await self.one.start()
        await self.two.start()
        everything = range(SHARE_PARTITIONS)
        assert await self.one.initialize(*everything) == [0] * SHARE_PARTITIONS
        for partition in everything:
            assert await self.one.write(partition, start_offset=partition) == [0]

    def move(self, state_partition: int, epoch: int, *, source: int = 1, target: int = 2) -> None:
        self.catalog.change(
            Owner(
                state_partition=state_partition,
                node_id=source,
                owner_epoch=epoch,
                is_moving=True,
                moving_to_node_id=target,
            )
        )

    def give(self, state_partition: int, epoch: int, node_id: int) -> None:
        self.catalog.change(Owner(state_partition=state_partition, node_id=node_id, owner_epoch=epoch))


def run_peers(test: Callable[[Peers], Awaitable[None]], *, piece_bytes: int = 200) -> None:
    """Runs a test with started peers under virtual time; nothing may go wrong unseen."""
    loop = VirtualLoop(time_limit=600)

    async def main() -> None:
        peers = Peers(piece_bytes=piece_bytes)
        await peers.start()
        await test(peers)

    loop.run(main())
    assert loop.problems == []


async def until(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Waits in virtual time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come to pass"
        await asyncio.sleep(0.005)
