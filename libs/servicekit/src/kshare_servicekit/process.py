"""The process of one role's node, from its flags to its exit code.

The process builds the event loop, the environment (RocksDB below the data directory) and the gRPC network, starts the
node, writes the ready file, and waits for SIGTERM or SIGINT, for a failure of the node that only a new process mends,
or, if configured, for its parent's end. Then it stops the node with grace. Exit codes: 0 after a requested stop, 1 when
the node could not start or has failed, 2 for bad settings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import uvloop

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.security.bounded_lines import BoundedLines
from kshare_fastpath.memory import collect_garbage_rarely, keep_large_buffers
from kshare_fastpath.scheduling import ask_for_short_slices
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.names import repeat_queries_early
from kshare_rpc.network import CallFailed, Network, Server
from kshare_runtime.clock import system_environment
from kshare_runtime.held_memory import HeldMemory
from kshare_runtime.ports import Environment
from kshare_servicekit import logs
from kshare_servicekit.call_audit import CallAudit
from kshare_servicekit.existing_cluster import ENGINE, KAFKA
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.logs import structlog
from kshare_servicekit.memory.budget import QUIET, budget_of_role, role_configs, store_memory
from kshare_servicekit.memory.giving_back import MemoryReturn
from kshare_servicekit.metrics_server import Metrics
from kshare_servicekit.process_settings import ProcessSettings, Settings, read_settings
from kshare_servicekit.tls.between_roles import check_roles_are_known, exchange_tls
from kshare_servicekit.tracing import OpenTelemetryTracer, collector_tracer

STOP_GRACE_MS = 5_000
ORPHAN_GRACE_MS = 500
"""The grace of a stop because the parent is gone: a new process of the role already waits for the data directory."""
PARENT_INTERVAL_MS = 200
PROBLEMS_INTERVAL_MS = 1_000

STARTED, FAILED, BAD_SETTINGS = 0, 1, 2

_ROLES_WITH_DATA = ("coordinator", "share-coordinator", "leader", "pipeline")


class Node(Protocol):
    """A node of one role; see docs/architecture.md."""

    async def start(self) -> None: ...

    async def stop(self, grace_ms: int) -> None: ...

    @property
    def address(self) -> str:
        """The serving address with the port that was really bound: gRPC, or Kafka's protocol at a gateway."""
        ...

    def problems(self) -> list[str]:
        """The problems that keep the node from its work now, in words; empty: healthy."""
        ...


@runtime_checkable
class ClusterNode(Protocol):
    """A node that follows the catalog and knows the problems of the whole cluster."""

    def cluster_problems(self) -> list[str]: ...


@runtime_checkable
class FailingNode(Protocol):
    """A node that may fail in such a way that only a new process can continue its work."""

    async def failed(self) -> str:
        """Returns the reason once the node has failed so."""
        ...


@runtime_checkable
class MeasuredNode(Protocol):
    """A node with metrics; `register_metrics` is called once, before its start."""

    def register_metrics(self, metrics: Metrics) -> None: ...


Prepare = Callable[[Configs, Callable[[str], None]], Awaitable[None]]
"""What has to be done before a node starts; it reports problems for which it waits, or raises InvalidConfig."""


def role_main(
    role: str,
    settings_type: type[Settings],
    build: Callable[[Environment, Network, Settings], Node],
    *,
    use_uvloop: bool = False,
    is_called: bool = True,
    arguments: Sequence[str] | None = None,
    prepare: Prepare | None = None,
) -> int:
    """The main function of a role: reads the flags and runs the node; returns the exit code.

    `is_called` is false for a role that no other role calls: its node serves no gRPC.
    """
    try:
        given = sys.argv[1:] if arguments is None else arguments
        settings = read_settings(settings_type, given, program=f"python -m kshare_{role.replace('-', '_')}")
    except SettingsError as error:
        sys.stderr.write(f"kshare {role}: {error}\n")
        return BAD_SETTINGS
    return run_role(
        lambda environment, network: build(environment, network, settings),
        settings,
        role=role,
        use_uvloop=use_uvloop,
        is_called=is_called,
        prepare=prepare,
    )


def run_role(
    build: Callable[[Environment, Network], Node],
    settings: ProcessSettings,
    *,
    role: str,
    use_uvloop: bool = False,
    is_called: bool = True,
    prepare: Prepare | None = None,
) -> int:
    """Runs the node from `build` until a stop is requested; returns the exit code."""
    repeat_queries_early()
    ask_for_short_slices()
    keep_large_buffers()
    collect_garbage_rarely()
    logs.configure(role=role, node_id=settings.node_id, log_format=settings.log_format, log_level=settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if use_uvloop else None) as runner:
        return runner.run(_Process(build, settings, role, is_called=is_called, prepare=prepare).run())


def _tracer(settings: ProcessSettings, role: str) -> OpenTelemetryTracer | None:
    if settings.trace_endpoint is None:
        return None
    return collector_tracer(
        role=role, node_id=settings.node_id, endpoint=settings.trace_endpoint, ratio=settings.trace_ratio
    )


class _Process:
    """One run of a node."""

    def __init__(
        self,
        build: Callable[[Environment, Network], Node],
        settings: ProcessSettings,
        role: str,
        *,
        is_called: bool,
        prepare: Prepare | None,
    ) -> None:
        self._is_called = is_called
        self._prepare = prepare
        self._build = build
        self._role = role
        self._settings = settings
        self._log = structlog.stdlib.get_logger("kshare")
        self._failed_calls: dict[str, BoundedLines] = {}
        """The log lines of failed calls, by method."""
        self._metrics = Metrics()
        self._tracer = _tracer(settings, role)
        self._health_server: Server | None = None
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._exit_code = STARTED
        self._grace_ms = STOP_GRACE_MS

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop, number.name)
        watchers = [loop.create_task(self._watch_parent())] if self._settings.parent_pid else []
        try:
            return await self._run_node(watchers)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            await self._metrics.stop()
            if self._tracer is not None:
                await loop.run_in_executor(None, self._tracer.shutdown)

    async def _run_node(self, watchers: list[asyncio.Task[None]]) -> int:
        node: Node | None = None
        try:
            addresses = {}
            configs = self._configs()
            if self._settings.metrics_listen is not None:
                self._metrics.require_token(configs)
                addresses["metrics_address"] = await self._metrics.serve(self._settings.metrics_listen)
            tls = self._exchange_tls(configs)
            self._metrics.add_role_certificate(tls)
            network = GrpcNetwork(
                operations_listen=self._settings.operations_listen,
                advertised_address=self._settings.advertised_address,
                on_handler_error=self._log_handler_error,
                tracer=self._tracer,
                tls=tls,
                audit=CallAudit(self._role, self._settings.node_id),
            )
            self._metrics.add_network(network.statistics)
            self._measure_disk(configs)
            memory = self._memory_return(configs)
            environment = system_environment(
                self._settings.data_dir, store_memory=store_memory(configs), held_memory=memory.held
            )
            node = self._build(replace(environment, tracer=self._tracer), network)
            watchers.append(asyncio.get_running_loop().create_task(memory.run(), name="memory-return"))
            if isinstance(node, MeasuredNode):
                node.register_metrics(self._metrics)
            if not self._is_called:  # before the start, which may wait for other roles: probes must see a live process
                self._health_server = await self._serve_health(network, node)
            if await self._start(node, configs):
                addresses = {
                    "address": node.address,
                    "operations_address": network.operations_address or "",
                    **addresses,
                }
                if self._settings.ready_file is not None:
                    write_ready_file(self._settings.ready_file, addresses)
                self._log.info("started", **addresses)
                watchers += self._watch(node)
                await self._stop.wait()
        except SettingsError as error:
            self._log.error("bad settings", reason=str(error))
            return BAD_SETTINGS
        except (StorageFailure, KafkaError, CallFailed, OSError, ValueError) as error:
            self._log.error("could not start", reason=str(error))
            return FAILED
        except Exception:
            self._log.exception("could not start")
            return FAILED
        self._log.info("stopping", reason=self._stop_reason)
        await node.stop(self._grace_ms)
        if self._health_server is not None:
            await self._health_server.stop(0)
        self._log.info("stopped")
        return self._exit_code

    def _measure_disk(self, configs: Configs) -> None:
        """Not of a gateway, nor of roles in front of a Kafka, which keep nothing on a disk."""
        if self._role in _ROLES_WITH_DATA and configs.text(ENGINE) != KAFKA:
            self._metrics.add_data_directory(self._settings.data_dir)

    def _memory_return(self, configs: Configs) -> MemoryReturn:
        budget = self._settings.memory_budget or budget_of_role(configs)
        memory = MemoryReturn(HeldMemory(), budget, quiet_ms=configs.integer(QUIET))
        self._metrics.add_memory(memory)
        return memory

    def _configs(self) -> Configs:
        try:
            return role_configs(self._settings.properties(), self._role, self._settings.memory_budget)[0]
        except InvalidConfig as error:
            raise SettingsError(f"{self._settings.config}: {error}") from error

    def _exchange_tls(self, configs: Configs) -> ExchangeTls | None:
        try:
            check_roles_are_known(configs)
            return exchange_tls(configs)
        except InvalidConfig as error:
            raise SettingsError(f"{self._settings.config}: {error}") from error

    async def _serve_health(self, network: GrpcNetwork, node: Node) -> Server:
        name = "".join(word.capitalize() for word in self._role.split("-"))
        cluster_problems = node.cluster_problems if isinstance(node, ClusterNode) else None
        return await network.serve_health(name, lambda: not node.problems(), cluster_problems)

    async def _start(self, node: Node, configs: Configs) -> bool:
        """Whether the node started before a stop was requested; a start may wait for other roles indefinitely."""
        loop = asyncio.get_running_loop()
        start = loop.create_task(self._prepared_start(node, configs), name="start")
        stop = loop.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                return True
            return False
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.gather(start, stop, return_exceptions=True)

    async def _prepared_start(self, node: Node, configs: Configs) -> None:
        if self._settings.start_pipe is not None:
            self._log.debug("loaded, waiting for the end of the start pipe")
            await _closed(self._settings.start_pipe)
            if self._settings.parent_pid and os.getppid() != self._settings.parent_pid:
                await self._stop.wait()  # the parent's end closed the pipe: `_watch_parent` sees that
        if self._prepare is not None:
            try:
                await self._prepare(configs, lambda problem: self._log.warning("waiting", reason=problem))
            except InvalidConfig as error:
                raise SettingsError(str(error)) from error
        await node.start()

    def _ask_to_stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        self._stop.set()

    async def _watch_parent(self) -> None:
        while os.getppid() == self._settings.parent_pid:
            await asyncio.sleep(PARENT_INTERVAL_MS / 1000)
        self._grace_ms = ORPHAN_GRACE_MS
        self._ask_to_stop(f"the parent process {self._settings.parent_pid} has ended")

    def _watch(self, node: Node) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        watchers = [loop.create_task(self._watch_problems(node))]
        if isinstance(node, FailingNode):
            watchers.append(loop.create_task(self._watch_failure(node)))
        return watchers

    async def _watch_failure(self, node: FailingNode) -> None:
        reason = await node.failed()
        self._log.error("failed", reason=reason)
        self._exit_code = FAILED
        self._ask_to_stop("the node has failed")

    async def _watch_problems(self, node: Node) -> None:
        """Logs the node's problems, as the health check reports them, whenever they change."""
        known: list[str] = []
        while True:
            failure: Exception | None = None
            try:
                problems = node.problems()
            except Exception as error:  # the next problems are to be logged as well
                failure, problems = (
                    error,
                    [f"the node's problems could not be determined: {type(error).__name__}: {error}"],
                )
            if problems and problems != known:
                self._log.warning("not healthy", problems=problems, exc_info=failure)
            elif known and not problems:
                self._log.info("healthy again")
            known = problems
            await asyncio.sleep(PROBLEMS_INTERVAL_MS / 1000)

    def _log_handler_error(self, path: str, error: BaseException) -> None:
        """A caller that repeats a call that fails causes a limited number of tracebacks."""
        left_out = self._failed_calls.setdefault(path, BoundedLines()).take()
        if left_out is not None:
            more = {"left_out_before": left_out} if left_out else {}
            self._log.error("a call failed", method=path, reason=str(error), exc_info=error, **more)


async def _closed(pipe: int) -> None:
    """Returns when the other end of the pipe is closed."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(pipe, closed.set)
    try:
        await closed.wait()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def write_ready_file(path: Path, content: Mapping[str, str]) -> None:
    """Writes `key=value` lines atomically: a reader never sees a part of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("".join(f"{key}={value}\n" for key, value in content.items()), encoding="utf-8")
    temporary.replace(path)
