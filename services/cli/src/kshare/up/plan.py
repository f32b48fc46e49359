"""Which roles run, in which order they start, and with which settings; the settings are kshare_servicekit's.

Started in the order coordinator, share coordinator, leader, gateway; stopped the other way round.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from kshare.addresses import WILDCARD_HOSTS, Address, bind_problem, free_port
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory
from kshare.up.supervisor import ProcessPlan

COORDINATOR, SHARE_COORDINATOR, LEADER, GATEWAY = ROLES = ("coordinator", "share-coordinator", "leader", "gateway")
INTERNAL_HOST = "127.0.0.1"
NODE_ID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Where everything listens on this machine."""

    client_address: Address
    advertised: Address
    role_addresses: dict[str, Address]
    """gRPC addresses of all roles but the gateway."""
    config_file: Path | None

    @property
    def coordinator_address(self) -> str:
        return str(self.role_addresses[COORDINATOR])


def plan_cluster(
    directory: DataDirectory, listen: Address, advertised: Address | None, config_file: Path | None
) -> ClusterPlan:
    """Picks the ports (the last run's where they are still free) and remembers them; CommandFailed."""
    remembered = directory.remembered_ports()
    client = _client_address(listen, remembered.get(GATEWAY))
    taken = [client.port]
    addresses: dict[str, Address] = {}
    for role in ROLES[:-1]:
        port = free_port(INTERNAL_HOST, remembered=remembered.get(role), taken=tuple(taken))
        taken.append(port)
        addresses[role] = Address(INTERNAL_HOST, port)
    directory.remember_ports({GATEWAY: client.port} | {role: address.port for role, address in addresses.items()})
    return ClusterPlan(
        client_address=client,
        advertised=advertised or Address(_reachable_host(client.host), client.port),
        role_addresses=addresses,
        config_file=config_file,
    )


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
    return [ProcessPlan(name=role, command=role_command(directory, plan, role)) for role in ROLES]


def role_command(directory: DataDirectory, plan: ClusterPlan, role: str) -> list[str]:
    """The command line of a role's process."""
    options = {
        "--node-id": str(NODE_ID),
        "--data-dir": str(directory.path),
        "--parent-pid": str(os.getpid()),
        "--coordinator-address": plan.coordinator_address,
        "--ready-file": str(directory.ready_file(role)),
    }
    if role == GATEWAY:
        options |= {
            "--client-listen": str(plan.client_address),
            "--advertised-host": plan.advertised.host,
            "--advertised-port": str(plan.advertised.port),
        }
    else:
        options["--listen"] = str(plan.role_addresses[role])
    if plan.config_file is not None:
        options["--config"] = str(plan.config_file)
    module = f"kshare_{role.replace('-', '_')}"
    return [sys.executable, "-m", module, *(part for option in options.items() for part in option)]
