"""Which roles run, in which order they start, and with which settings; the settings are kshare_servicekit's.

Started in the order coordinators, share coordinators, leaders, gateway; stopped the other way round. There are as many
coordinators, share coordinators and leaders as kshare.coordinators, kshare.share.coordinators and kshare.leaders say,
with node ids from 1 on. The second and further ones are named coordinator-2, share-coordinator-2, leader-2, …, and have
a directory of that name for their store; several coordinators have theirs in etcd.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kshare.addresses import WILDCARD_HOSTS, Address, bind_problem, free_port
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory
from kshare.up.supervisor import ProcessPlan
from kshare_core.configs import Configs

COORDINATOR, SHARE_COORDINATOR, LEADER, GATEWAY = "coordinator", "share-coordinator", "leader", "gateway"
COORDINATORS, SHARE_COORDINATORS = "kshare.coordinators", "kshare.share.coordinators"
METADATA_STORE, ETCD = "kshare.metadata.store", "etcd"
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
        """What its log, its ready file and its port are called."""
        return self.role if self.node_id == NODE_ID else f"{self.role}-{self.node_id}"

    def data_dir(self, directory: Path) -> Path:
        """Where its store lies."""
        return directory if self.node_id == NODE_ID else directory / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Where everything listens on this machine."""

    client_address: Address
    advertised: Address
    nodes: Sequence[PlannedNode]
    """In the order in which they start; the gateway is the last."""
    addresses: dict[str, Address]
    """gRPC addresses by the names of the nodes, of all but the gateway."""
    config_file: Path | None
    metrics: Mapping[str, Address] = field(default_factory=dict)
    """Where processes show their metrics, by the names of their nodes; empty: nowhere."""

    @property
    def coordinator_address(self) -> str:
        """Of all coordinators, with commas between them."""
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
    coordinators: int = 1,
    share_coordinators: int = 1,
    leaders: int = 1,
) -> ClusterPlan:
    """Picks the ports (the last run's where they are still free) and remembers them; CommandFailed."""
    remembered = directory.remembered_ports()
    client = _client_address(listen, remembered.get(GATEWAY))
    nodes = [
        *(PlannedNode(COORDINATOR, NODE_ID + number) for number in range(coordinators)),
        *(PlannedNode(SHARE_COORDINATOR, NODE_ID + number) for number in range(share_coordinators)),
        *(PlannedNode(LEADER, NODE_ID + number) for number in range(leaders)),
        PlannedNode(GATEWAY),
    ]
    taken = [client.port]
    addresses: dict[str, Address] = {}
    for node in nodes[:-1]:
        port = free_port(INTERNAL_HOST, remembered=remembered.get(node.name), taken=tuple(taken))
        taken.append(port)
        addresses[node.name] = Address(INTERNAL_HOST, port)
    directory.remember_ports({GATEWAY: client.port} | {name: address.port for name, address in addresses.items()})
    return ClusterPlan(
        client_address=client,
        advertised=advertised or Address(_reachable_host(client.host), client.port),
        nodes=nodes,
        addresses=addresses,
        config_file=config_file,
    )


def coordinator_count(configs: Configs) -> int:
    """How many coordinators there shall be; CommandFailed where their metadata cannot be shared."""
    count, store = configs.integer(COORDINATORS), str(configs[METADATA_STORE])
    if count > 1 and store != ETCD:
        text = f"{COORDINATORS} is {count}, but with {METADATA_STORE}={store} there can only be 1 coordinator, which"
        raise CommandFailed(f"{text} has all metadata to itself; several need {METADATA_STORE}={ETCD}", BAD_USE)
    return count


def _client_address(listen: Address, remembered: int | None) -> Address:
    if listen.port == 0:
        return Address(listen.host, free_port(listen.host, remembered=remembered))
    problem = bind_problem(listen)
    if problem is not None:
        raise CommandFailed(f"cannot listen on {listen}: {problem}", BAD_USE)
    return listen


def _reachable_host(host: str) -> str:
    """The host that clients are told: this machine's name where the listener takes every address, as Kafka does."""
    if host not in WILDCARD_HOSTS:
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name


def process_plans(directory: DataDirectory, plan: ClusterPlan) -> list[ProcessPlan]:
    """The processes in the order in which they start."""
    return [ProcessPlan(name=node.name, command=node_command(directory, plan, node)) for node in plan.nodes]


def node_command(directory: DataDirectory, plan: ClusterPlan, node: PlannedNode) -> list[str]:
    """The command line of a node's process."""
    options = {
        "--node-id": str(node.node_id),
        "--data-dir": str(node.data_dir(directory.path)),
        "--parent-pid": str(os.getpid()),
        "--coordinator-address": plan.coordinator_address,
        "--ready-file": str(directory.ready_file(node.name)),
    }
    if node.role == GATEWAY:
        options |= {
            "--client-listen": str(plan.client_address),
            "--advertised-host": plan.advertised.host,
            "--advertised-port": str(plan.advertised.port),
        }
    else:
        options["--listen"] = str(plan.addresses[node.name])
    if node.name in plan.metrics:
        options["--metrics-listen"] = str(plan.metrics[node.name])
    if plan.config_file is not None:
        options["--config"] = str(plan.config_file)
    module = f"kshare_{node.role.replace('-', '_')}"
    return [sys.executable, "-m", module, *(part for option in options.items() for part in option)]
