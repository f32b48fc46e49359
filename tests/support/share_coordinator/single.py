"""One share coordinator that owns all state partitions, and a catalog that says so, in one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from kshare_core.configs import Configs
from kshare_core.configs.broker import BROKER_CONFIGS
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COORDINATOR,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Channel, Service
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings

STATE_PARTITIONS = 50
TOPIC_ID = bytes(range(1, 17))
COORDINATOR_ADDRESS = "coordinator:1"
TIMEOUT_MS = 60_000


class LoopClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class SingleShareCoordinator:
    """`open_store` is the node's; `store` is what it has open."""

    def __init__(self, open_store: Callable[[str], KeyValueStore]) -> None:
        self._open_store = open_store
        self._network = InProcessNetwork()
        self._nodes: list[coordinator_pb2.Node] = []
        self.topics: list[coordinator_pb2.Topic] = []
        """Of the catalog; to be set before the start."""
        self._is_stopped = True
        self.node = self._new_node()

    @property
    def channel(self) -> Channel:
        return self._network.connect(self.node.address)

    def key(self, number: int) -> SharePartitionKey:
        return SharePartitionKey("orders", TOPIC_ID, number)

    def problems(self) -> list[str]:
        return self.node.problems()

    async def start(self) -> None:
        service = Service(COORDINATOR, {REGISTER_NODE: self._register, WATCH_CATALOG: self._watch})
        await self._network.serve(COORDINATOR_ADDRESS, [service])
        await self._start_node()

    async def restart(self) -> None:
        if not self._is_stopped:
            await self.stop()
        self.node = self._new_node()
        await self._start_node()

    async def stop(self) -> None:
        self._is_stopped = True
        await self.node.stop(0)

    async def _start_node(self) -> None:
        self._is_stopped = False
        await self.node.start()

    async def initialize(self, key: SharePartitionKey) -> int:
        request = messages.InitializeShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(topic_id=key.topic_id, partition=key.partition, state_epoch=1, start_offset=0)
        answer, _ = await self.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0].error_code

    async def write(
        self, key: SharePartitionKey, runs: Sequence[tuple[int, int, int, int]], *, delivery_complete_count: int = 0
    ) -> int:
        request = messages.WriteShareGroupStateRequest(group_id=key.group_id)
        partition = request.partitions.add(
            topic_id=key.topic_id,
            partition=key.partition,
            state_epoch=1,
            leader_epoch=0,
            start_offset=-1,
            delivery_complete_count=delivery_complete_count,
        )
        for first, last, state, count in runs:
            partition.state_batches.add(
                first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
            )
        answer, _ = await self.channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0].error_code

    async def read(self, key: SharePartitionKey) -> messages.ReadShareGroupStateResponse.Result:
        request = messages.ReadShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(topic_id=key.topic_id, partition=key.partition, leader_epoch=-1)
        answer, _ = await self.channel.call(READ_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0]

    def _new_node(self) -> ShareCoordinatorNode:
        def open_store(name: str) -> KeyValueStore:
            self.store = self._open_store(name)
            return self.store

        return ShareCoordinatorNode(
            environment=Environment(clock=LoopClock(), random=random.Random(1), open_store=open_store),
            network=self._network,
            settings=ShareCoordinatorSettings(
                node_id=1,
                listen="share-coordinator:1",
                coordinator_address=COORDINATOR_ADDRESS,
                configs=Configs(BROKER_CONFIGS),
            ),
        )

    async def _register(
        self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview
    ) -> coordinator_pb2.RegisterNodeResponse:
        self._nodes = [request.node]
        return coordinator_pb2.RegisterNodeResponse(node_epoch=1, lease_ms=9_000)

    async def _watch(
        self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview
    ) -> coordinator_pb2.WatchCatalogResponse:
        if request.after_version >= 1:
            await asyncio.sleep(request.max_wait_ms / 1000)
        return coordinator_pb2.WatchCatalogResponse(
            version=1,
            cluster_id="cluster-one",
            full=True,
            nodes_changed=True,
            nodes=self._nodes,
            topics=self.topics,
            state_partition_count=STATE_PARTITIONS,
            state_partition_owners=[
                coordinator_pb2.StatePartitionOwner(state_partition=number, node_id=1, owner_epoch=1)
                for number in range(STATE_PARTITIONS)
            ],
        )
