"""The steps of `kshare up`.

Check the configuration, lock the directory, pick the ports, listen for clients, start the roles. If they use an
existing cluster, their processes load their programs, and wait until the cluster was examined (`kshare attach`) and
kshare's topics are there. When every role can serve and a client gets responses, print the address and write the ready
file. Wait for SIGTERM or SIGINT. Then stop the gateway, the leaders, the share coordinators and the coordinators, in
this order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import uvloop

from kshare.addresses import Address, parse_address
from kshare.command_options import LOCAL
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import read_metadata
from kshare.up.certificates import certificate_properties, own_certificates
from kshare.up.client_sockets import close_client_sockets, open_client_sockets
from kshare.up.console import Console
from kshare.up.data_directory import DataDirectory, is_in_use, write_atomically
from kshare.up.layout import is_one_process
from kshare.up.metrics_plan import ALL_ROLES, next_address, plan_metrics
from kshare.up.plan import (
    COORDINATOR,
    LEADER,
    LEADERS,
    SHARE_COORDINATOR,
    SHARE_COORDINATORS,
    ClusterPlan,
    coordinator_count,
    plan_cluster,
)
from kshare.up.role_processes import RoleProcesses
from kshare.up.web_console import NAME as WEB_CONSOLE
from kshare.up.web_console import ConsoleOptions, WebConsole
from kshare_core.configs import Configs, InvalidConfig, process_configs
from kshare_fastpath.memory import collect_garbage_rarely, keep_large_buffers, no_garbage_collection
from kshare_fastpath.scheduling import ask_for_short_slices
from kshare_gateway.connections.listeners import GatewayListener, configured_listeners
from kshare_gateway.security.ignored_settings import check_none_is_ignored
from kshare_servicekit.existing_cluster import ENGINE, KAFKA, METADATA_STORE
from kshare_servicekit.memory.budget import budget_of_all, budgets_of_processes
from kshare_servicekit.own_host import own_host
from kshare_servicekit.properties import parse_properties
from kshare_servicekit.tls.between_roles import exchange_tls
from kshare_servicekit.tls.to_upstream import PROTOCOL

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
READY_POLL_S = 0.02
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `kshare up` as the user gave them."""

    data_dir: Path
    listen: str | None
    """None: `listeners` of the configuration, or `default_listen`."""
    advertised: str | None
    ready_file: Path | None
    processes: str
    """See `layout`."""
    config_file: Path | None
    user_config_file: Path | None = None
    """The file that errors name, if `config_file` was made from it."""
    metrics_listen: str | None = None
    default_listen: str = LOCAL
    web_console: ConsoleOptions | None = None

    @property
    def named_config_file(self) -> Path | None:
        return self.user_config_file or self.config_file


Examine = Callable[[], Awaitable[bool]]
"""Whether kshare can work with the existing cluster; it says why not. CommandFailed."""


class ClusterRefused(Exception):
    """The examination of the existing cluster found something that kshare cannot work with, and said so."""


def run_up(options: UpOptions, examine: Examine | None = None) -> bool:
    """Runs until SIGTERM or SIGINT; False at once if `examine` says that kshare cannot work. CommandFailed."""
    _interrupt_on_signals()
    try:
        return _run_until_interrupted(options, examine)
    except KeyboardInterrupt:  # before an event loop handles signals
        return True


def _interrupt_on_signals() -> None:
    """SIGTERM and SIGINT raise KeyboardInterrupt, which cleans up; without it SIGTERM would end the process at once."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)


def _run_until_interrupted(options: UpOptions, examine: Examine | None) -> bool:
    try:
        settings = _checked(options)
    except CommandFailed:
        if options.ready_file is not None and not is_in_use(options.data_dir):
            _remove_stale(options.ready_file)
        raise
    directory = DataDirectory(options.data_dir)
    try:
        if options.ready_file is not None:  # not that of a process which has the directory
            _remove_stale(options.ready_file)
        return _run_in(directory, options, settings, examine)
    finally:
        directory.close()


class _Settings(NamedTuple):
    """What the options and the configuration say; nothing was done yet."""

    listen: Address
    advertised: Address | None
    configs: Configs
    warnings: list[str]
    coordinators: int
    listeners: tuple[GatewayListener, ...]


def _checked(options: UpOptions) -> _Settings:
    listen = parse_address(options.listen or options.default_listen, what="--listen")
    advertised = None if options.advertised is None else parse_address(options.advertised, what="--advertised")
    configs, warnings = load_configs(options.config_file)
    return _Settings(listen, advertised, configs, warnings, coordinator_count(configs), _listeners(options, configs))


def _run_in(directory: DataDirectory, options: UpOptions, settings: _Settings, examine: Examine | None) -> bool:
    listen, advertised, configs, warnings, coordinators, listeners = settings
    config_file = options.config_file.resolve() if options.config_file else None
    plan = plan_cluster(
        directory,
        listen,
        advertised,
        config_file,
        listeners=listeners,
        coordinators=coordinators,
        share_coordinators=configs.integer(SHARE_COORDINATORS),
        leaders=configs.integer(LEADERS),
    )
    certificates = own_certificates(directory, configs, listeners)
    plan = replace(plan, certificates=certificates, all_authenticate=_all_authenticate(configs))
    processors = len(os.sched_getaffinity(0))
    one_process = is_one_process(options.processes, len(plan.nodes), processors=processors)
    plan = _with_metrics(options, plan, one_process=one_process)
    memory_budget = _memory_budget(options, configs, len(plan.nodes), one_process=one_process)
    plan = replace(plan, memory_budgets=budgets_of_processes(memory_budget, [node.role for node in plan.nodes]))
    plan = replace(plan, sockets=open_client_sockets(plan))
    console = Console()
    try:
        for name, address in plan.metrics.items():
            console.write(f"metrics of {name}: http://{address}/metrics")
        for warning in [*warnings, *_stores_left_out(directory, plan, configs)]:
            console.write(f"warning: {warning}")
        prepare = _preparation(configs, examine, console)
        web_console = None
        if options.web_console is not None:
            web_console = WebConsole(options.web_console, directory, plan, configs, console.write)
        if one_process:
            _run_one_process(options, directory, plan, memory_budget, console, web_console, prepare)
        else:
            processes = RoleProcesses(directory, plan, console.write, waits=prepare is not None)
            asyncio.run(_run(options, plan, processes, console, web_console, prepare))
    except ClusterRefused:
        return False
    finally:
        close_client_sockets(plan.sockets)
        console.close()
    return True


def _run_one_process(
    options: UpOptions,
    directory: DataDirectory,
    plan: ClusterPlan,
    memory_budget: int,
    console: Console,
    web_console: WebConsole | None,
    prepare: Preparation | None,
) -> None:
    if prepare is not None:
        is_prepared = asyncio.run(_is_completed(prepare))
        _interrupt_on_signals()  # the event loop has removed its handlers
        if not is_prepared:
            console.write("stopping")
            return
    with no_garbage_collection():
        from kshare.up.single_process import SingleProcess  # slow to import: loads every role

    configs, _ = load_configs(options.config_file, certificate_properties(plan.certificates, COORDINATOR))
    ask_for_short_slices()
    keep_large_buffers()
    collect_garbage_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        single = SingleProcess(directory, plan, configs, memory_budget)
        runner.run(_run(options, plan, single, console, web_console))


def _memory_budget(options: UpOptions, configs: Configs, nodes: int, *, one_process: bool) -> int:
    try:
        return budget_of_all(configs, nodes, one_process=one_process)
    except InvalidConfig as error:
        raise CommandFailed(f"configuration {options.named_config_file}: {error}", BAD_USE) from None


Preparation = Callable[[], Awaitable[None]]


def _preparation(configs: Configs, examine: Examine | None, console: Console) -> Preparation | None:
    """What has to be done in an existing cluster before roles begin to work; None without a cluster."""
    if KAFKA not in (configs.text(ENGINE), configs.text(METADATA_STORE)):
        return None

    async def prepare() -> None:
        from kshare.up.existing_cluster import prepare_cluster  # loaded while the roles load

        if examine is not None and not await examine():
            raise ClusterRefused
        await prepare_cluster(configs, console.write)

    return prepare


async def _is_completed(prepare: Preparation) -> bool:
    """False if a signal came first."""
    stop = _stop_requested()
    work = asyncio.ensure_future(prepare())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, work], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if work.done():
        work.result()
        return not stop.is_set()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False


def _stop_requested() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _with_metrics(options: UpOptions, plan: ClusterPlan, *, one_process: bool) -> ClusterPlan:
    if options.metrics_listen is None:
        return plan
    listen = parse_address(options.metrics_listen, what="--metrics-listen")
    names = [ALL_ROLES] if one_process else [node.name for node in plan.nodes]
    taken = [plan.client_address.port, *(listener.port for listener in plan.listeners)]
    taken += [address.port for address in plan.addresses.values()]
    if options.web_console is not None:
        taken.append(options.web_console.listen.port)
    metrics = plan_metrics(listen, names, taken=taken)
    if options.web_console is not None:
        metrics[WEB_CONSOLE] = next_address(listen, taken=[*taken, *(address.port for address in metrics.values())])
    return replace(plan, metrics=metrics)


def load_configs(path: Path | None, more: Mapping[str, str] | None = None) -> tuple[Configs, list[str]]:
    """The values of the configuration file and `more`, and warnings about configs without effect.

    CommandFailed names the file.
    """
    try:
        found = {} if path is None else parse_properties(path.read_text(encoding="utf-8"))
        return process_configs({**found, **(more or {})})
    except (OSError, ValueError) as error:
        raise CommandFailed(f"configuration {path}: {error}", BAD_USE) from None


def _listeners(options: UpOptions, configs: Configs) -> tuple[GatewayListener, ...]:
    """The listeners of the config `listeners`. Loads all certificates, also those between roles; CommandFailed."""
    try:
        listeners = configured_listeners(configs, own_host)
        exchange_tls(configs)
        _check_security(configs, listeners)
        if any(listener.is_tls for listener in listeners):
            from kshare_gateway.security.configuration import tls_configs
            from kshare_servicekit.tls.contexts import server_context  # slow to import, and only needed with TLS

            for listener in listeners:
                if listener.is_tls:
                    server_context(tls_configs(configs, listener))
    except InvalidConfig as error:
        raise CommandFailed(f"configuration {options.named_config_file}: {error}", BAD_USE) from None
    if listeners and (options.listen is not None or options.advertised is not None):
        text = f"--listen and --advertised are not allowed: configuration {options.named_config_file} has `listeners`"
        raise CommandFailed(f"{text}; set listeners and advertised.listeners there instead", BAD_USE)
    return listeners


def _check_security(configs: Configs, listeners: Sequence[GatewayListener]) -> None:
    check_none_is_ignored(configs, listeners)
    if listeners or configs.text("authorizer.class.name"):
        from kshare_gateway.security.configuration import check_security  # loads libraries that few commands need

        check_security(configs, listeners)


def _stores_left_out(directory: DataDirectory, plan: ClusterPlan, configs: Configs) -> list[str]:
    """A warning for each share coordinator and leader of an earlier run that is not started; none without stores."""
    if configs.text(ENGINE) == KAFKA:
        return []
    kinds = (
        (SHARE_COORDINATOR, plan.share_coordinators, "share-group state", SHARE_COORDINATORS),
        (LEADER, plan.leaders, "records", LEADERS),
    )
    warnings: list[str] = []
    for role, planned, content, config in kinds:
        names = [node.name for node in planned]
        for path in sorted(path for path in directory.path.glob(f"{role}-*") if path.is_dir()):
            if path.name not in names:
                text = f"unless it was drained, the cluster lacks its {content} in {path} ({config} is {len(names)})"
                warnings.append(f"{path.name} is not started; {text}")
    return warnings


def _remove_stale(ready_file: Path) -> None:
    try:
        ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot remove the stale ready file: {error}", BAD_USE) from None


class Roles(Protocol):
    """All roles of one cluster, as processes or in this process."""

    @property
    def ready_files(self) -> Sequence[Path]:
        """Files that exist once every role can serve."""
        ...

    async def start(self) -> None: ...

    def go_on(self) -> None:
        """Lets roles work that wait for the preparation of an existing cluster."""
        ...

    async def stop(self) -> None: ...


async def _run(
    options: UpOptions,
    plan: ClusterPlan,
    roles: Roles,
    console: Console,
    web_console: WebConsole | None,
    prepare: Preparation | None = None,
) -> None:
    """Runs the roles until a signal; they wait for `prepare`."""
    stop = _stop_requested()
    ready = asyncio.create_task(_get_ready(options, plan, roles, console, web_console, prepare))
    is_refused = False
    try:
        await _until_stopped(stop, ready)
    except ClusterRefused:
        is_refused = True
        raise
    finally:
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)
        if not is_refused:
            console.write("stopping")
        if web_console is not None:
            await web_console.stop()
        await roles.stop()
        if options.ready_file is not None:
            options.ready_file.unlink(missing_ok=True)


async def _until_stopped(stop: asyncio.Event, ready: asyncio.Task[None]) -> None:
    """Waits for the stop; raises if the start fails, or the announcement (the ready file cannot be written)."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, ready], return_when=asyncio.FIRST_COMPLETED)
    if ready.done() and not stop.is_set():
        ready.result()
        await stopped
    stopped.cancel()


async def _get_ready(
    options: UpOptions,
    plan: ClusterPlan,
    roles: Roles,
    console: Console,
    web_console: WebConsole | None,
    prepare: Preparation | None,
) -> None:
    await roles.start()
    if prepare is not None:
        await prepare()
    roles.go_on()
    if web_console is not None:
        web_console.start()
    ready_files = [*roles.ready_files, *([web_console.ready_file] if web_console is not None else [])]
    await _announce(options, plan, console, wait_for=ready_files)
    if web_console is not None:
        console.write(f"the console is at http://{web_console.address()}")


async def _announce(options: UpOptions, plan: ClusterPlan, console: Console, *, wait_for: Sequence[Path]) -> None:
    """Prints the address and writes the ready file, once every role is ready and the gateway responds to Metadata."""
    while not all(path.exists() for path in wait_for):
        await asyncio.sleep(READY_POLL_S)
    while not await asyncio.to_thread(_serves_clients, plan):
        await asyncio.sleep(READY_POLL_S)
    if options.ready_file is not None:
        write_atomically(options.ready_file, str(plan.client_address))
    listening = ", ".join(map(str, plan.listeners)) or str(plan.client_address)
    console.write(f"kshare listens on {listening}")


def _all_authenticate(configs: Configs) -> bool:
    """Whether clients authenticate at an existing cluster, to which gateways relay their SASL."""
    return configs.text(ENGINE) == KAFKA and configs.text(PROTOCOL).startswith("SASL")


def _serves_clients(plan: ClusterPlan) -> bool:
    """Whether the gateway responds to Metadata, or accepts connections if every listener asks for credentials.

    This process has neither a client certificate nor a password.
    """
    open_to_all = [listener for listener in plan.listeners if not listener.is_tls and not listener.is_sasl]
    probed = open_to_all[0] if open_to_all else plan.client_address
    address = Address({"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(probed.host, probed.host), probed.port)
    try:
        if plan.all_authenticate or (plan.listeners and not open_to_all):
            with socket.create_connection(address, timeout=CONNECT_TIMEOUT_S):
                return True
        return bool(read_metadata(address).brokers)
    except (CommandFailed, OSError):
        return False
