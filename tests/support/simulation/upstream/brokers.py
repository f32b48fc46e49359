"""The hosts of the simulated cluster's brokers, and a cluster for tests that need nothing else."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.port import OpenUpstream
from support.simulation.connections import ClientListeners, connect_nodes
from support.simulation.history import History
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.loop import Incarnation, VirtualLoop, current_incarnation
from support.simulation.network import SimulatedFabric
from support.simulation.upstream.broker import BrokerNode
from support.simulation.upstream.cluster import BROKER_PORT, SimulatedUpstream

BROKER = "broker"
REQUEST_TIMEOUT_MS = 10_000
"""How long nodes wait for an answer; less than Kafka's 30 s, so that seeds see more of what follows."""


def broker_hosts(
    count: int, seed: str, fabric: SimulatedFabric, listeners: ClientListeners
) -> tuple[SimulatedUpstream, dict[str, SimulatedHost]]:
    """A cluster of `count` brokers, and their hosts, which are not started yet."""
    upstream = SimulatedUpstream(fabric, random.Random(f"{seed}/upstream"))
    hosts = {}
    for node_id in range(1, count + 1):
        hosts[f"{BROKER}-{node_id}"] = host = _host(node_id, seed, fabric, listeners, upstream)
        upstream.add_broker(node_id, host)
    connect_nodes(listeners)
    return upstream, hosts


def _host(
    node_id: int, seed: str, fabric: SimulatedFabric, listeners: ClientListeners, upstream: SimulatedUpstream
) -> SimulatedHost:
    def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
        return BrokerNode(upstream, node_id)

    def open_door(host: SimulatedHost) -> None:
        assert host.incarnation is not None and isinstance(host.node, BrokerNode)
        listeners.listen(f"{host.name}:{BROKER_PORT}", host.incarnation, host.node.new_connection)

    return SimulatedHost(
        f"{BROKER}-{node_id}", seed=seed, fabric=fabric, listeners=listeners, build=build, on_started=open_door
    )


def opener(upstream: SimulatedUpstream) -> OpenUpstream:
    """Opens the client of a node: the one of production, whose connections the loop makes."""
    addresses = [each.rpartition(":") for each in upstream.bootstrap]
    bootstrap = [BrokerAddress(host, int(port)) for host, _, port in addresses]
    return lambda: Cluster(bootstrap, ClientSettings(request_timeout_ms=REQUEST_TIMEOUT_MS))


class BrokerCluster:
    """Brokers alone, with hosts that tests add; what faults need of a cluster (`faults.FaultyCluster`)."""

    def __init__(self, loop: VirtualLoop, seed: str, count: int = 3) -> None:
        self.loop = loop
        self.seed = seed
        self.history = History()
        self.fabric = SimulatedFabric(loop, random.Random(f"{seed}/network"), self.history)
        self.listeners = ClientListeners(self.fabric)
        self.leaving: dict[str, None] = {}
        self.upstream, self.hosts = broker_hosts(count, seed, self.fabric, self.listeners)
        self._clients: dict[str, ClusterClient] = {}

    async def start(self) -> None:
        for host in self.hosts.values():
            await host.start()
        self.upstream.start()

    def client(self, name: str) -> ClusterClient:
        """A simulated client machine; the same one for the same name."""
        if name not in self._clients:
            self._clients[name] = ClusterClient(
                name,
                listeners=self.listeners,
                bootstrap=self.upstream.bootstrap,
                randomness=random.Random(f"{self.seed}/{name}"),
                history=self.history,
            )
        return self._clients[name]

    def all_host_names(self) -> list[str]:
        return [*self.hosts, *self._clients]

    def problems(self) -> list[str]:
        return [*self.fabric.bugs, *self.loop.problems]


@asynccontextmanager
async def simulated_cluster(seed: int) -> AsyncIterator[tuple[Cluster, BrokerCluster]]:
    """Brokers without faults, and a client on a host of its own; in a VirtualLoop. What follows runs on that host."""
    brokers = BrokerCluster(VirtualLoop.running(), str(seed))
    await brokers.start()
    token = current_incarnation.set(Incarnation("client", 1))
    try:
        client = opener(brokers.upstream)()
        assert isinstance(client, Cluster)
        yield client, brokers
        await client.close()
    finally:
        current_incarnation.reset(token)
    assert brokers.problems() == []
