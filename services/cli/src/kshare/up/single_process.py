"""All roles in this process: the same nodes in one event loop, connected by direct calls.

Stores have the same paths as with processes, so a data directory works with either. Each node has its own tracer, so
traces look like those of processes. Log lines name the role whose code logs them (kshare_servicekit.logs). Coordinators
and share coordinators also listen for other processes and write ready files, because kshare's commands call them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory, write_atomically
from kshare.up.metrics_plan import ALL_ROLES
from kshare.up.plan import COORDINATOR, GATEWAY, LEADER, NODE_ID, SHARE_COORDINATOR, ClusterPlan, PlannedNode
from kshare.up.reachable_network import ReachableNetwork
from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import Configs, InvalidConfig
from kshare_core.errors import KafkaError, StorageFailure
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import CallFailed
from kshare_runtime.clock import system_environment
from kshare_runtime.held_memory import HeldMemory
from kshare_runtime.ports import Environment
from kshare_servicekit import logs
from kshare_servicekit.call_audit import CallAudit
from kshare_servicekit.existing_cluster import upstream_opener
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.memory.budget import QUIET, shares_of_nodes, store_memory, with_cache_sizes
from kshare_servicekit.memory.giving_back import MemoryReturn
from kshare_servicekit.memory.limit import queued_bytes, share_partitions
from kshare_servicekit.metrics_server import Metrics
from kshare_servicekit.process_settings import ObservabilitySettings, read_observability_settings
from kshare_servicekit.tls.between_roles import exchange_tls
from kshare_servicekit.tracing import OpenTelemetryTracer, collector_tracer
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings

STOP_GRACE_MS = 5_000


class Node(Protocol):
    """The interface of every role's node (docs/architecture.md)."""

    async def start(self) -> None: ...

    async def stop(self, grace_ms: int) -> None: ...

    def register_metrics(self, metrics: Metrics) -> None: ...


def _observability_settings() -> ObservabilitySettings:
    try:
        return read_observability_settings()
    except SettingsError as error:
        raise CommandFailed(str(error), BAD_USE) from None


def _tracers(plan: ClusterPlan, settings: ObservabilitySettings) -> dict[str, OpenTelemetryTracer]:
    """One tracer per node, by its name, as with processes; none unless KSHARE_TRACE_ENDPOINT is set."""
    if settings.trace_endpoint is None:
        return {}
    return {
        node.name: collector_tracer(
            role=node.role, node_id=node.node_id, endpoint=settings.trace_endpoint, ratio=settings.trace_ratio
        )
        for node in plan.nodes
    }


class SingleProcess:
    """Starts the nodes in order, and stops those that were started in reverse."""

    def __init__(self, directory: DataDirectory, plan: ClusterPlan, configs: Configs, memory_budget: int) -> None:
        self._directory = directory
        roles = [node.role for node in plan.nodes]
        self._cache_bytes = shares_of_nodes(memory_budget, roles, one_process=True)
        self._memory = MemoryReturn(HeldMemory(), memory_budget, quiet_ms=configs.integer(QUIET))
        self._plan = plan
        self._configs = configs
        self._started = AsyncExitStack()
        self._metrics = Metrics(has_several_nodes=True)
        self._metrics.add_memory(self._memory)
        self._metrics.add_data_directory(directory.path)
        self._observability = _observability_settings()
        self._tracers = _tracers(plan, self._observability)
        called = [*plan.coordinators, *plan.share_coordinators]
        self.ready_files: Sequence[Path] = [directory.ready_file(node.name) for node in called]

    async def start(self) -> None:
        """CommandFailed; `stop` then ends what was started."""
        try:
            await self._start()
        except (SettingsError, InvalidConfig) as error:
            raise CommandFailed(str(error), BAD_USE) from None
        except (StorageFailure, KafkaError, CallFailed, OSError) as error:
            raise CommandFailed(f"could not start: {error}") from error

    async def _start(self) -> None:
        logs.configure_all_roles(
            [(node.role, node.node_id) for node in self._plan.nodes],
            log_format=self._observability.log_format,
            log_level=self._observability.log_level,
        )
        self._started.push_async_callback(self._end_traces)
        nodes = self._nodes()
        watch = asyncio.get_running_loop().create_task(self._memory.run(), name="memory-return")
        self._started.callback(watch.cancel)
        for node in nodes:
            node.register_metrics(self._metrics)
        if ALL_ROLES in self._plan.metrics:
            self._metrics.require_token(self._configs)
            self._started.push_async_callback(self._metrics.stop)
            await self._metrics.serve(str(self._plan.metrics[ALL_ROLES]))
        for node in nodes:
            self._started.push_async_callback(node.stop, STOP_GRACE_MS)
            await node.start()

    def go_on(self) -> None:
        """Nothing waits: an existing cluster is prepared before the start."""

    async def stop(self) -> None:
        await self._started.aclose()

    async def _end_traces(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, each.shutdown) for each in self._tracers.values()))

    def _nodes(self) -> list[Node]:
        network = InProcessNetwork()
        self._metrics.add_network(network.statistics)
        plan = self._plan
        open_upstream = upstream_opener(self._configs)
        addresses = {name: str(address) for name, address in plan.addresses.items()}
        return [
            *(
                CoordinatorNode(
                    environment=self._environment(node),
                    network=self._reachable(node, network),
                    settings=CoordinatorSettings(
                        node_id=node.node_id,
                        listen=addresses[node.name],
                        coordinator_address=addresses[node.name],
                        configs=self._configs_of(COORDINATOR),
                    ),
                    open_upstream=open_upstream,
                )
                for node in plan.coordinators
            ),
            *(
                ShareCoordinatorNode(
                    environment=self._environment(node),
                    network=self._reachable(node, network),
                    settings=ShareCoordinatorSettings(
                        node_id=node.node_id,
                        listen=addresses[node.name],
                        coordinator_address=plan.coordinator_address,
                        configs=self._configs_of(SHARE_COORDINATOR),
                    ),
                    open_upstream=open_upstream,
                )
                for node in plan.share_coordinators
            ),
            *(
                LeaderNode(
                    environment=self._environment(node),
                    network=self._reachable(node, network),
                    settings=LeaderSettings(
                        node_id=node.node_id,
                        listen=addresses[node.name],
                        coordinator_address=plan.coordinator_address,
                        configs=self._configs_of(LEADER),
                        queued_bytes=queued_bytes(self._configs_of(LEADER)),
                        max_share_partitions=share_partitions(self._configs_of(LEADER)),
                    ),
                    open_upstream=open_upstream,
                )
                for node in plan.leaders
            ),
            GatewayNode(
                environment=self._environment(plan.nodes[-1]),
                network=network,
                settings=GatewaySettings(
                    node_id=NODE_ID,
                    client_listen=str(plan.client_address),
                    advertised_host=plan.advertised.host,
                    advertised_port=plan.advertised.port,
                    listeners=plan.listeners,
                    coordinator_address=plan.coordinator_address,
                    configs=self._configs_of(GATEWAY),
                    queued_bytes=queued_bytes(self._configs_of(GATEWAY)),
                    sockets=plan.sockets,
                    leaders_are_here=True,
                ),
                open_upstream=open_upstream,
            ),
        ]

    def _reachable(self, node: PlannedNode, network: InProcessNetwork) -> ReachableNetwork:
        def served(address: str, operations_address: str) -> None:
            text = f"address={address}\noperations_address={operations_address}\n"
            write_atomically(self._directory.ready_file(node.name), text)

        audit = CallAudit(node.role, node.node_id)
        traced = network.traced(self._tracers.get(node.name))
        tls = exchange_tls(self._configs)  # of all nodes from the same files
        self._metrics.add_role_certificate(tls)
        return ReachableNetwork(traced, served, tls, audit)

    def _configs_of(self, role: str) -> Configs:
        return with_cache_sizes(self._configs, role, self._cache_bytes[role])

    def _environment(self, node: PlannedNode) -> Environment:
        environment = system_environment(
            node.data_dir(self._directory.path),
            store_memory=store_memory(self._configs_of(node.role)),
            held_memory=self._memory.held,
        )
        return replace(environment, tracer=self._tracers.get(node.name))
