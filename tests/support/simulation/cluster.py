"""All four roles on simulated hosts, and a tap on what leaders and share coordinators answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import Configs, process_configs
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.methods import (
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    SHARE_FETCH,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.network import Method, Network
from kshare_runtime.ports import Environment
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from support.simulation.clients import ClusterClient
from support.simulation.connections import ClientListeners
from support.simulation.history import Acquired, FaultEvent, History, StateWritten
from support.simulation.hosts import BuildNode, Node, SimulatedHost
from support.simulation.loop import VirtualLoop
from support.simulation.mutations import Mutation
from support.simulation.network import SimulatedFabric

RPC_PORT = 9000
CLIENT_PORT = 9092
COORDINATOR = "coordinator-1"
OBSERVER = "observer"

ROLES = ("coordinator", "share-coordinator", "leader", "gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many nodes of each role there are, and Kafka's broker configs for all of them."""

    share_coordinators: int = 1
    leaders: int = 1
    gateways: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)

    def host_names(self) -> list[str]:
        counts = (1, self.share_coordinators, self.leaders, self.gateways)
        return [f"{role}-{number + 1}" for role, count in zip(ROLES, counts, strict=True) for number in range(count)]


def _settings(role: str, number: int, configs: Configs) -> Any:
    name = f"{role}-{number}"
    if role == "gateway":
        return GatewaySettings(
            node_id=number,
            client_listen="",
            advertised_host=name,
            advertised_port=CLIENT_PORT,
            coordinator_address=f"{COORDINATOR}:{RPC_PORT}",
            configs=configs,
        )
    kinds: dict[str, Any] = {
        "coordinator": CoordinatorSettings,
        "share-coordinator": ShareCoordinatorSettings,
        "leader": LeaderSettings,
    }
    return kinds[role](
        node_id=number,
        listen=f"{name}:{RPC_PORT}",
        coordinator_address=f"{COORDINATOR}:{RPC_PORT}",
        configs=configs,
    )


NODES: dict[str, Any] = {
    "coordinator": CoordinatorNode,
    "share-coordinator": ShareCoordinatorNode,
    "leader": LeaderNode,
    "gateway": GatewayNode,
}


class Cluster:
    """See the module's text. All randomness comes from `seed`."""

    def __init__(self, loop: VirtualLoop, seed: str, shape: Shape, mutation: Mutation | None = None) -> None:
        self.loop = loop
        self.seed = seed
        self.shape = shape
        self.history = History()
        self.fabric = SimulatedFabric(loop, random.Random(f"{seed}/network"), self.history)
        self.fabric.taps.append(self._tap)
        self.listeners = ClientListeners(self.fabric)
        self._clients: dict[str, ClusterClient] = {}
        self._mutation = mutation or Mutation()
        self.configs, _ = process_configs(shape.configs)
        self.hosts = {name: self._host(name) for name in shape.host_names()}

    def _host(self, name: str) -> SimulatedHost:
        role, _, number = name.rpartition("-")
        return SimulatedHost(
            name,
            seed=self.seed,
            fabric=self.fabric,
            listeners=self.listeners,
            build=self._build(role, int(number)),
            on_started=self._open_door if role == "gateway" else lambda host: None,
            unsynced_disk=role in self._mutation.unsynced_roles,
        )

    def _build(self, role: str, number: int) -> BuildNode:
        settings = _settings(role, number, self.configs)

        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            network = self._mutation.network(role, network)
            node: Node = NODES[role](environment=environment, network=network, settings=settings)
            return node

        return build

    def _open_door(self, host: SimulatedHost) -> None:
        """Lets clients in; runs in the gateway."""
        assert host.incarnation is not None
        node: Any = host.node
        self.listeners.listen(f"{host.name}:{CLIENT_PORT}", host.incarnation, node.new_connection)

    async def start(self) -> None:
        """Starts every host, and returns when all nodes are up."""
        await asyncio.gather(*(host.start() for host in self.hosts.values()))

    def client(self, name: str) -> ClusterClient:
        """A client machine that knows every gateway; the same one for the same name."""
        if name not in self._clients:
            self._clients[name] = ClusterClient(
                name,
                listeners=self.listeners,
                bootstrap=[f"{host}:{CLIENT_PORT}" for host in self.hosts if host.startswith("gateway")],
                randomness=random.Random(f"{self.seed}/{name}"),
                history=self.history,
            )
        return self._clients[name]

    def all_host_names(self) -> list[str]:
        """Of the cluster and of its clients."""
        return [*self.hosts, *self._clients]

    def problems(self) -> list[str]:
        """What no run may show, whatever its faults: exceptions that nobody caught, and answers that are bugs."""
        return [*self.fabric.bugs, *self.loop.problems]

    # The tap

    def _tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        if answer is None:
            return
        if method == REGISTER_NODE:
            # A node that registers again had lost its lease: what it only had in memory is gone, as after a crash.
            self.history.add(FaultEvent(self.loop.time(), "registered", (source,), ""))
        elif method == WATCH_CATALOG:
            # A leader releases what the members of a gateway hold that is gone from the catalog.
            if getattr(answer, "nodes_changed", False):
                self.history.add(FaultEvent(self.loop.time(), "sees other nodes", (source,), ""))
        elif method == READ_SHARE_GROUP_STATE:
            # The leader begins anew with what is stored: at first, or because it did not know what became of a write.
            self.history.add(FaultEvent(self.loop.time(), "loads state", (source,), request.group_id))
        elif method == SHARE_FETCH:
            self._tap_share_fetch(request, answer, sent_at)
        elif method in (WRITE_SHARE_GROUP_STATE, INITIALIZE_SHARE_GROUP_STATE):
            self._tap_state(request, answer, sent_at)

    def _tap_share_fetch(self, request: Any, answer: Any, sent_at: float) -> None:
        now = self.loop.time()
        for partition in answer.partitions:
            for acquired in partition.acquired_records:
                run = (acquired.first_offset, acquired.last_offset)
                owner = request.owner
                self.history.add(
                    Acquired(
                        now,
                        sent_at,
                        owner.group_id,
                        owner.member_id,
                        partition.partition,
                        run,
                        acquired.delivery_count,
                    )
                )

    def _tap_state(self, request: Any, answer: Any, sent_at: float) -> None:
        now = self.loop.time()
        for asked, result in zip(request.partitions, answer.results, strict=True):
            if result.error_code == 0:
                batches = getattr(asked, "state_batches", ())
                self.history.add(
                    StateWritten(
                        now,
                        sent_at,
                        request.group_id,
                        asked.partition,
                        asked.state_epoch,
                        getattr(asked, "leader_epoch", -1),
                        asked.start_offset,
                        tuple((b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in batches),
                    )
                )
