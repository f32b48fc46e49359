"""All four roles on simulated hosts, and a tap on what leaders and share coordinators answer.

With the kafka engine there are brokers as well (`upstream`), and the roles' hosts have no disks. With etcd there can be
several coordinators, which have no disks either: what they store is in etcd's model. Hosts can join a cluster that runs
(`add_host`) and leave it for good (`remove_host`, `lose_host`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.opening import CALLS_PER_LEASE
from kshare_coordinator.metadata.port import MetadataStore
from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import Configs, process_configs
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_upstream.own_topics import STATE_PARTITIONS_CONFIG, create_own_topics, metadata_topic, state_topic
from kshare_upstream.port import OpenUpstream
from kshare_upstream.topics import Replicas
from support.metadata.faulty_etcd import Effects, FaultyEtcd
from support.metadata.memory_etcd import MemoryEtcd
from support.simulation.activities.older_versions import OlderNetwork
from support.simulation.connections import ClientListeners
from support.simulation.disks.batch_files import drawn_sizes
from support.simulation.history import History
from support.simulation.hosts import BuildNode, HostClock, Node, SimulatedHost
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.loop import HostDied, Incarnation, MonotonicClock, VirtualLoop
from support.simulation.mutations import Mutation
from support.simulation.network import SimulatedFabric
from support.simulation.tap import ClusterTap
from support.simulation.upstream.brokers import BROKER, broker_hosts, opener
from support.simulation.upstream.cluster import BROKER_PORT, SimulatedUpstream

RPC_PORT = 9000
CLIENT_PORT = 9092
COORDINATOR = "coordinator-1"
OBSERVER = "observer"
OPERATOR = "operator of nodes"

JOIN_POLL_S = 1.0

ROLES = ("coordinator", "share-coordinator", "leader", "gateway")
ENGINES = EMBEDDED, KAFKA = "embedded", "kafka"
LOST_DISKS = "lost-disks"
"""The embedded engine with leaders whose disks are lost or older (`lost_logs`)."""
VARIANTS = (*ENGINES, LOST_DISKS)
"""As what a seed is run."""
KAFKA_CONFIGS = {"kshare.engine": KAFKA, "kshare.metadata.store": KAFKA}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many nodes of each role there are, and Kafka's broker configs for all of them."""

    engine: str = EMBEDDED
    brokers: int = 0
    """Of the existing cluster, for the kafka engine."""
    coordinators: int = 1
    has_etcd: bool = False
    """Whether the coordinators keep the metadata in etcd; several of them need it with the embedded engine."""
    share_coordinators: int = 1
    leaders: int = 1
    gateways: int = 1
    clocks_differ: bool = False
    """Whether the dates of hosts are wrong from the start, and their monotonic clocks began at different times."""
    has_batch_files: bool = False
    """Whether batches lie in files beside the leaders' stores."""
    configs: Mapping[str, str] = field(default_factory=dict)

    def host_names(self) -> list[str]:
        counts = (self.coordinators, self.share_coordinators, self.leaders, self.gateways)
        return [f"{role}-{number + 1}" for role, count in zip(ROLES, counts, strict=True) for number in range(count)]

    @property
    def coordinator_addresses(self) -> str:
        return ",".join(f"coordinator-{number + 1}:{RPC_PORT}" for number in range(self.coordinators))

    def process_configs(self) -> Configs:
        of_engine = {}
        if self.engine == KAFKA:
            brokers = ",".join(f"{BROKER}-{number + 1}:{BROKER_PORT}" for number in range(self.brokers))
            of_engine = {**KAFKA_CONFIGS, "kshare.upstream.bootstrap.servers": brokers}
        configs, _ = process_configs({**self.configs, **of_engine})
        return configs


def client_address(gateway: str) -> str:
    """Where a gateway listens for Kafka clients."""
    return f"{gateway}:{CLIENT_PORT}"


def shape_of(engine: str, **others: Any) -> Shape:
    """A shape with this engine; an existing cluster has three brokers. `others` as in Shape."""
    return Shape(engine=engine, brokers=3 if engine == KAFKA else 0, **others)


def _settings(role: str, number: int, shape: Shape, configs: Configs) -> Any:
    name = f"{role}-{number}"
    coordinators = shape.coordinator_addresses
    if role == "gateway":
        return GatewaySettings(
            node_id=number,
            client_listen="",
            advertised_host=name,
            advertised_port=CLIENT_PORT,
            coordinator_address=coordinators,
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
        coordinator_address=f"{name}:{RPC_PORT}" if role == "coordinator" else coordinators,
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
        ClusterTap(loop, self.fabric, self.history.add)
        self.listeners = ClientListeners(self.fabric)
        self._clients: dict[str, ClusterClient] = {}
        self._mutation = mutation or Mutation()
        self.configs = shape.process_configs()
        self._upstream: SimulatedUpstream | None = None
        self._open_upstream: OpenUpstream | None = None
        self.broker_hosts: dict[str, SimulatedHost] = {}
        self.etcd = MemoryEtcd()
        self.ways_to_etcd: dict[str, FaultyEtcd] = {}
        """Of the newest life of each coordinator."""
        self.etcd_effects: dict[str, Effects] = {}
        """Of the faults of all these ways, by coordinator."""
        if shape.engine == KAFKA:
            self._upstream, self.broker_hosts = broker_hosts(shape.brokers, seed, self.fabric, self.listeners)
            self._open_upstream = opener(self._upstream)
        self.all_names = shape.host_names()
        """Also of hosts that are gone for good."""
        self.leaving: dict[str, None] = {}
        """Hosts that an operator is removing."""
        self.lost: dict[str, None] = {}
        """Hosts that are gone for good without having been drained."""
        self._removed: list[SimulatedHost] = []
        """Kept, because nothing of a dead host may be collected, and so run, before the end."""
        self.older: dict[str, None] = {}
        """Hosts whose next life is one of an older version."""
        self._gateways = [client_address(name) for name in self.all_names if name.startswith("gateway")]
        self.hosts = {**self.broker_hosts, **{name: self._host(name) for name in shape.host_names()}}

    @property
    def upstream(self) -> SimulatedUpstream:
        """The existing cluster; with the kafka engine."""
        assert self._upstream is not None, "the engine has no existing cluster"
        return self._upstream

    def _host(self, name: str) -> SimulatedHost:
        role, _, number = name.rpartition("-")
        draw = random.Random(f"{self.seed}/{name}/clock")
        has_files = self.shape.has_batch_files and role == "leader"
        return SimulatedHost(
            name,
            seed=self.seed,
            fabric=self.fabric,
            listeners=self.listeners,
            build=self._build(role, int(number)),
            on_started=self._open_door if role == "gateway" else lambda host: None,
            unsynced_disk=role in self._mutation.unsynced_roles,
            has_disk=self.shape.engine == EMBEDDED and not self._is_in_etcd(role),
            batch_files=drawn_sizes(random.Random(f"{self.seed}/{name}/files")) if has_files else None,
            clock=HostClock.that_differs(self.loop, draw) if self.shape.clocks_differ else None,
        )

    def _build(self, role: str, number: int) -> BuildNode:
        settings = _settings(role, number, self.shape, self.configs)

        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            network = self._mutation.network(role, network)
            if host.name in self.older:
                network = OlderNetwork(network)
            further = {"open_store": lambda: self._open_etcd(host.name)} if self._is_in_etcd(role) else {}
            node: Node = NODES[role](
                environment=environment,
                network=network,
                settings=settings,
                open_upstream=self._open_upstream,
                **further,
            )
            return node

        return build

    def _is_in_etcd(self, role: str) -> bool:
        return self.shape.has_etcd and role == "coordinator"

    def _open_etcd(self, name: str) -> MetadataStore:
        lease_ms = self.configs.integer("kshare.coordinator.lease.ms")
        client = self.etcd.client(time_limit_ms=lease_ms // CALLS_PER_LEASE)
        way = self.ways_to_etcd[name] = FaultyEtcd(client, self.etcd_effects.setdefault(name, Effects()))
        return EtcdMetadataStore(way, prefix=self.configs.text("kshare.metadata.etcd.prefix"), lease_ms=lease_ms)

    async def add_host(self, role: str) -> SimulatedHost:
        """A host of this role joins; returns when its node is up, or a fault has ended its first life.

        Not for coordinators.
        """
        numbers = [int(name.rpartition("-")[2]) for name in self.all_names if name.rpartition("-")[0] == role]
        name = f"{role}-{max(numbers) + 1}"
        host = self._host(name)
        self.all_names.append(name)
        self.hosts[name] = host
        starting = host.start()
        while not starting.done() and host.running and host.lives == 1:  # the code of a host that died never ends
            await asyncio.wait([starting], timeout=JOIN_POLL_S)
        # It is cancelled where the node was stopped while it started; the host may have died in a step of the start.
        if starting.done() and not starting.cancelled() and not isinstance(starting.exception(), HostDied):
            starting.result()
        if role == "gateway":
            self._gateways.append(client_address(name))
        return host

    def remove_host(self, name: str) -> None:
        """The host is gone for good; its name is not used again."""
        self._end(name, silent=False)
        self.forget_address(name)

    def lose_host(self, name: str, *, silent: bool) -> None:
        """The host is gone for good as it was; clients are given its address until `forget_address`."""
        self.lost[name] = None
        self._end(name, silent=silent)

    def is_known_to_clients(self, name: str) -> bool:
        """Whether clients find the gateway; they do not while it joins."""
        return client_address(name) in self._gateways

    def forget_address(self, name: str) -> None:
        """Clients look for no gateway there any more."""
        if self.is_known_to_clients(name):
            self._gateways.remove(client_address(name))

    def _end(self, name: str, *, silent: bool) -> None:
        host = self.hosts.pop(name)
        self._removed.append(host)
        host.is_gone = True
        host.crash(silent=silent)

    def _open_door(self, host: SimulatedHost) -> None:
        """Lets clients in; runs in the gateway."""
        assert host.incarnation is not None
        node: Any = host.node
        self.listeners.listen(client_address(host.name), host.incarnation, node.new_connection)

    async def start(self) -> None:
        """Starts every host, and returns when all nodes are up; brokers first, with kshare's own topics in them."""
        if self._upstream is not None:
            await asyncio.gather(*(host.start() for host in self.broker_hosts.values()))
            self._upstream.start()
            operator = Incarnation("operator", 1)
            await self.loop.task_in(operator, self._create_own_topics(), "operator")
        others = [host for name, host in self.hosts.items() if name not in self.broker_hosts]
        await asyncio.gather(*(host.start() for host in others))

    async def _create_own_topics(self) -> None:
        """What `kshare attach` does before it starts the roles."""
        assert self._open_upstream is not None
        client = self._open_upstream()
        prefix = self.configs.text("kshare.upstream.topic.prefix")
        topics = [state_topic(prefix, self.configs.integer(STATE_PARTITIONS_CONFIG)), metadata_topic(prefix)]
        await create_own_topics(client, topics, Replicas(self.shape.brokers, is_configured=True), print)
        await client.close()

    def client(self, name: str) -> ClusterClient:
        """A client machine that knows every gateway; the same one for the same name."""
        return self._client(name, self._gateways)

    def log_client(self, name: str) -> ClusterClient:
        """A client machine of what has the logs: the brokers, or with the embedded engine the gateways."""
        return self.client(name) if self._upstream is None else self._client(name, self._upstream.bootstrap)

    def _client(self, name: str, bootstrap: Sequence[str]) -> ClusterClient:
        if name not in self._clients:
            self._clients[name] = ClusterClient(
                name,
                listeners=self.listeners,
                bootstrap=bootstrap,
                randomness=random.Random(f"{self.seed}/{name}"),
                history=self.history,
            )
        return self._clients[name]

    def all_host_names(self) -> list[str]:
        """Of the cluster and of its clients."""
        return [*self.hosts, *self._clients]

    def clocks(self) -> dict[str, MonotonicClock]:
        """The monotonic clocks of all hosts, also of those that are gone for good."""
        return {host.name: host.clock.monotonic for host in self.all_hosts()}

    def all_hosts(self) -> list[SimulatedHost]:
        """Also those that are gone for good."""
        return [*self._removed, *self.hosts.values()]

    def problems(self) -> list[str]:
        """What no run may show, whatever its faults: exceptions that nobody caught, and answers that are bugs."""
        return [*self.fabric.bugs, *self.loop.problems]

    def has_disk_failed(self, host: str) -> bool:
        """Whether the host's disk has refused a write or failed a read so far."""
        of_host = next(one for one in self.all_hosts() if one.name == host)
        return of_host.disk.refused_count > 0 or of_host.disk_conditions.failed_read_count > 0
