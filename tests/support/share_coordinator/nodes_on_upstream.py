"""Whole share coordinators over an existing cluster, with a coordinator that a test scripts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COORDINATOR,
    DELETE_SHARE_GROUP_STATE,
    DEREGISTER_NODE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Service
from kshare_runtime.ports import Environment
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_upstream.port import OpenedUpstream, OpenUpstream, Upstream
from support.share_coordinator.states_on_upstream import CLUSTER_ID, LoopClock, no_store, settings

COORDINATOR_ADDRESS = "coordinator:1"
TIMEOUT_MS = 60_000


def always(upstream: Upstream) -> OpenUpstream:
    """Opens a client that exists already."""
    return lambda: cast(OpenedUpstream, upstream)


class ScriptedCoordinator:
    """Registers share coordinators, and names the owners that a test says."""

    def __init__(self, network: InProcessNetwork, state_partitions: int) -> None:
        self.owners: dict[int, coordinator_pb2.StatePartitionOwner] = {}
        self.nodes: dict[int, coordinator_pb2.Node] = {}
        self.epoch = 0
        self.deregistered: list[int] = []
        self.unheard: set[int] = set()
        """Nodes whose watches are answered only when they are in it no more."""
        self._network = network
        self._count = state_partitions
        self._version = 1

    async def start(self) -> None:
        service = Service(
            COORDINATOR,
            {REGISTER_NODE: self._register, DEREGISTER_NODE: self._deregister, WATCH_CATALOG: self._watch},
        )
        await self._network.serve(COORDINATOR_ADDRESS, [service])

    def give(self, node_id: int, state_partitions: Sequence[int]) -> None:
        """Makes a node the owner of state partitions."""
        self.epoch += 1
        for number in state_partitions:
            owner = coordinator_pb2.StatePartitionOwner(state_partition=number, node_id=node_id, owner_epoch=self.epoch)
            self.owners[number] = owner
        self._version += 1

    async def _register(
        self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview
    ) -> coordinator_pb2.RegisterNodeResponse:
        self.epoch = max(self.epoch, request.highest_leader_epoch) + 1
        node = coordinator_pb2.Node()
        node.CopyFrom(request.node)
        node.node_epoch = self.epoch
        self.nodes[node.node_id] = node
        self._version += 1
        return coordinator_pb2.RegisterNodeResponse(node_epoch=node.node_epoch, lease_ms=60_000)

    async def _deregister(
        self, request: coordinator_pb2.DeregisterNodeRequest, payload: memoryview
    ) -> coordinator_pb2.DeregisterNodeResponse:
        self.deregistered.append(request.node_id)
        return coordinator_pb2.DeregisterNodeResponse()

    async def _watch(
        self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview
    ) -> coordinator_pb2.WatchCatalogResponse:
        waited_ms = 0
        while request.node_id in self.unheard or (
            request.after_version >= self._version and waited_ms < request.max_wait_ms
        ):
            await asyncio.sleep(0.01)
            waited_ms += 10
        return coordinator_pb2.WatchCatalogResponse(
            version=self._version,
            cluster_id=CLUSTER_ID,
            full=True,
            nodes_changed=True,
            nodes=list(self.nodes.values()),
            state_partition_count=self._count,
            state_partition_owners=list(self.owners.values()),
        )


class NodesOnUpstream:
    """A network with a scripted coordinator; `start_node` adds share coordinators."""

    def __init__(self, *, state_partitions: int = 1) -> None:
        self.network = InProcessNetwork()
        self.coordinator = ScriptedCoordinator(self.network, state_partitions)
        self._started = 0

    async def start_node(
        self, upstream: Upstream, node_id: int = 1, configs: dict[str, str] | None = None
    ) -> ShareCoordinatorNode:
        self._started += 1
        node = ShareCoordinatorNode(
            environment=Environment(clock=LoopClock(), random=random.Random(self._started), open_store=no_store),
            network=self.network,
            settings=settings(node_id, configs),
            open_upstream=always(upstream),
        )
        await node.start()
        return node

    async def initialize(self, node: ShareCoordinatorNode, key: SharePartitionKey) -> int:
        request = messages.InitializeShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(topic_id=key.topic_id, partition=key.partition, state_epoch=1, start_offset=0)
        channel = self.network.connect(node.address)
        answer, _ = await channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0].error_code

    async def delete(self, node: ShareCoordinatorNode, key: SharePartitionKey) -> int:
        request = messages.DeleteShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(topic_id=key.topic_id, partition=key.partition)
        channel = self.network.connect(node.address)
        answer, _ = await channel.call(DELETE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0].error_code

    async def write(self, node: ShareCoordinatorNode, key: SharePartitionKey, offset: int) -> int:
        """Acknowledges one offset; the error code."""
        request = messages.WriteShareGroupStateRequest(group_id=key.group_id)
        partition = request.partitions.add(
            topic_id=key.topic_id,
            partition=key.partition,
            state_epoch=1,
            leader_epoch=0,
            start_offset=-1,
            delivery_complete_count=1,
        )
        partition.state_batches.add(first_offset=offset, last_offset=offset, delivery_state=2, delivery_count=1)
        channel = self.network.connect(node.address)
        answer, _ = await channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0].error_code

    async def read(
        self, node: ShareCoordinatorNode, key: SharePartitionKey, owner_epoch: int = 0
    ) -> messages.ReadShareGroupStateResponse.Result:
        """`owner_epoch` is that of the reader's catalog."""
        request = messages.ReadShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(topic_id=key.topic_id, partition=key.partition, leader_epoch=-1, owner_epoch=owner_epoch)
        channel = self.network.connect(node.address)
        answer, _ = await channel.call(READ_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return answer.results[0]


async def serves(node: ShareCoordinatorNode, state_partitions: int = 1) -> None:
    """Returns when the node serves all state partitions."""
    while any(node.engine.refusal(number) is not None for number in range(state_partitions)):
        await asyncio.sleep(0.005)
