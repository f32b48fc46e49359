"""The plan of a `kshare up`: its nodes, their start order, addresses and settings (those of kshare_servicekit).

Nodes start in the order coordinators, share coordinators, leaders, gateway, and stop in reverse. The configs
kshare.coordinators, kshare.share.coordinators and kshare.leaders set their numbers; node ids begin at 1. Further nodes
of a role are named coordinator-2, share-coordinator-2, leader-2, …, as is the directory of their store. Several
coordinators store their metadata in etcd or in an existing Kafka cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kshare.addresses import WILDCARD_HOSTS, Address, bind_problem, free_port
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory
from kshare.up.supervisor import ProcessPlan
from kshare_core.configs import Configs
from kshare_gateway.connections.listeners import GatewayListener, joined
from kshare_gateway.connections.listening_sockets import SocketsOfListeners, as_flag
from kshare_servicekit.own_host import own_host

COORDINATOR, SHARE_COORDINATOR, LEADER, GATEWAY = "coordinator", "share-coordinator", "leader", "gateway"
COORDINATORS, SHARE_COORDINATORS = "kshare.coordinators", "kshare.share.coordinators"
METADATA_STORE = "kshare.metadata.store"
SHARED_STORES = ("etcd", "kafka")
LEADERS = "kshare.leaders"
INTERNAL_HOST = "127.0.0.1"
NODE_ID = 1


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node: its role and its id among the nodes of this role."""

    role: str
    node_id: int = NODE_ID

    @property
    def name(self) -> str:
        """The name of its log, its ready file and its port."""
        return self.role if self.node_id == NODE_ID else f"{self.role}-{self.node_id}"

    def data_dir(self, directory: Path) -> Path:
        """The directory that holds its store."""
        return directory if self.node_id == NODE_ID else directory / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """All nodes and their addresses on this machine."""

    client_address: Address
    advertised: Address
    nodes: Sequence[PlannedNode]
    """In start order; the gateway is the last."""
    addresses: dict[str, Address]
    """gRPC addresses by node name, of all nodes but the gateway."""
    config_file: Path | None
    metrics: Mapping[str, Address] = field(default_factory=dict)
    """Metrics addresses by the name of a process: a node, all roles or the console; empty: metrics are not served."""
    certificates: Mapping[str, Path] = field(default_factory=dict)
    """Further property files by role, with its certificate; empty: `config_file` says all."""
    listeners: Sequence[GatewayListener] = ()
    """The listeners of the config `listeners`, the first at `client_address`; empty: only `client_address`."""
    memory_budgets: Mapping[str, int] = field(default_factory=dict)
    """The memory budget of a node's process by role, from kshare.memory.budget."""
    sockets: SocketsOfListeners = field(default_factory=dict)
    """Sockets for clients that listen already; a listener without any is bound by the gateway."""
    all_authenticate: bool = False
    """Whether every client needs credentials, since an existing cluster asks for them."""

    @property
    def coordinator_address(self) -> str:
        """The addresses of all coordinators, separated by commas."""
        return ",".join(str(self.addresses[node.name]) for node in self.coordinators)

    @property
    def coordinators(self) -> list[PlannedNode]:
        return [node for node in self.nodes if node.role == COORDINATOR]

    @property
    def share_coordinators(self) -> list[PlannedNode]:
        return [node for node in self.nodes if node.role == SHARE_COORDINATOR]

    @property
    def leaders(self) -> list[PlannedNode]:
        return [node for node in self.nodes if node.role == LEADER]


def plan_cluster(
    directory: DataDirectory,
    listen: Address,
    advertised: Address | None,
    config_file: Path | None,
    *,
    listeners: Sequence[GatewayListener] = (),
    coordinators: int = 1,
    share_coordinators: int = 1,
    leaders: int = 1,
) -> ClusterPlan:
    """Picks the ports (those of the last run if they are still free) and stores them; CommandFailed.

    `listen` and `advertised` are ignored if there are `listeners`.
    """
    remembered = directory.remembered_ports()
    bound = _bound_listeners(listeners, remembered)
    client = _client_address(listen, remembered.get(GATEWAY))
    if bound:
        client = _address_of(bound[0])
        advertised = Address(bound[0].advertised_host, bound[0].advertised_port)
    nodes = [
        *(PlannedNode(COORDINATOR, NODE_ID + number) for number in range(coordinators)),
        *(PlannedNode(SHARE_COORDINATOR, NODE_ID + number) for number in range(share_coordinators)),
        *(PlannedNode(LEADER, NODE_ID + number) for number in range(leaders)),
        PlannedNode(GATEWAY),
    ]
    taken = [client.port, *(listener.port for listener in bound)]
    addresses: dict[str, Address] = {}
    for node in nodes[:-1]:
        port = free_port(INTERNAL_HOST, remembered=remembered.get(node.name), taken=tuple(taken))
        taken.append(port)
        addresses[node.name] = Address(INTERNAL_HOST, port)
    ports = {GATEWAY: client.port} | {_port_name(listener): listener.port for listener in bound}
    directory.remember_ports(ports | {name: address.port for name, address in addresses.items()})
    return ClusterPlan(
        client_address=client,
        advertised=advertised or Address(_reachable_host(client.host), client.port),
        nodes=nodes,
        addresses=addresses,
        config_file=config_file,
        listeners=bound,
    )


def coordinator_count(configs: Configs) -> int:
    """The number of coordinators; CommandFailed if there are several without a shared metadata store."""
    count, store = configs.integer(COORDINATORS), str(configs[METADATA_STORE])
    if count > 1 and store not in SHARED_STORES:
        text = f"{COORDINATORS} is {count}, but {METADATA_STORE}={store} allows only 1 coordinator"
        raise CommandFailed(f"{text}; several need {METADATA_STORE}={' or '.join(SHARED_STORES)}", BAD_USE)
    return count


def _client_address(listen: Address, remembered: int | None) -> Address:
    if listen.port == 0:
        return Address(listen.host, free_port(listen.host, remembered=remembered))
    problem = bind_problem(listen)
    if problem is not None:
        raise CommandFailed(f"cannot listen on {listen}: {problem}", BAD_USE)
    return listen


def _bound_listeners(listeners: Sequence[GatewayListener], remembered: Mapping[str, int]) -> list[GatewayListener]:
    """The listeners, with a free port in place of port 0; CommandFailed if one cannot be bound."""
    found: list[GatewayListener] = []
    for listener in listeners:
        host = _address_of(listener).host
        if listener.port == 0:
            taken = tuple(other.port for other in found)
            port = free_port(host, remembered=remembered.get(_port_name(listener)), taken=taken)
        else:
            port = _client_address(Address(host, listener.port), None).port
        found.append(replace(listener, port=port, advertised_port=listener.advertised_port or port))
    return found


def _address_of(listener: GatewayListener) -> Address:
    return Address(listener.host or WILDCARD_HOSTS[0], listener.port)


def _port_name(listener: GatewayListener) -> str:
    return f"{GATEWAY} {listener.name}"


def _reachable_host(host: str) -> str:
    """The host for metadata responses: this machine's name for a wildcard listener, as in Kafka."""
    return own_host() if host in WILDCARD_HOSTS else host


def process_plans(directory: DataDirectory, plan: ClusterPlan) -> list[ProcessPlan]:
    """The processes in start order."""
    descriptors = [each.fileno() for those in plan.sockets.values() for each in those]
    return [
        ProcessPlan(
            name=node.name,
            command=node_command(directory, plan, node),
            inherited=descriptors if node.role == GATEWAY else (),
        )
        for node in plan.nodes
    ]


def node_command(directory: DataDirectory, plan: ClusterPlan, node: PlannedNode) -> list[str]:
    """The command line of a node's process."""
    options = {
        "--node-id": str(node.node_id),
        "--data-dir": str(node.data_dir(directory.path)),
        "--parent-pid": str(os.getpid()),
        "--coordinator-address": plan.coordinator_address,
        "--ready-file": str(directory.ready_file(node.name)),
    }
    if node.role == GATEWAY and plan.listeners:
        advertised = [f"{each.name}://{joined(each.advertised_host, each.advertised_port)}" for each in plan.listeners]
        options |= {
            "--listeners": ",".join(map(str, plan.listeners)),
            "--advertised-listeners": ",".join(advertised),
        }
    elif node.role == GATEWAY:
        options |= {
            "--client-listen": str(plan.client_address),
            "--advertised-host": plan.advertised.host,
            "--advertised-port": str(plan.advertised.port),
        }
    else:
        options["--listen"] = str(plan.addresses[node.name])
    if node.role == GATEWAY and plan.sockets:
        options["--client-sockets"] = as_flag(plan.sockets)
    if node.role in plan.memory_budgets:
        options["--memory-budget"] = str(plan.memory_budgets[node.role])
    if node.name in plan.metrics:
        options["--metrics-listen"] = str(plan.metrics[node.name])
    if plan.config_file is not None:
        options["--config"] = str(plan.config_file)
    if node.role in plan.certificates:
        options["--config-secret"] = str(plan.certificates[node.role])
    module = f"kshare_{node.role.replace('-', '_')}"
    return [sys.executable, "-m", module, *(part for option in options.items() for part in option)]
