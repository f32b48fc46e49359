"""The web console of `kshare up --console`: a supervised process of its own, started once clients can connect.

It connects to one listener as its users do. With a SASL listener they sign in; its protocol and mechanism are written
to a client config. A listener with TLS needs `--console-client-config`, since only the user knows which authority his
clients trust. It calls roles with the administrator's certificate of this run, or that of the configuration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kshare.addresses import Address, bind_problem, parse_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.certificates import ADMINISTRATOR
from kshare.up.data_directory import DataDirectory
from kshare.up.plan import ClusterPlan
from kshare.up.supervisor import ProcessPlan, RotatingLog, SupervisedProcess
from kshare_core.configs import Configs
from kshare_gateway.connections.listeners import GatewayListener

NAME = "console"
MEMORY_BUDGET_BYTES = 256 * 1024 * 1024
ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""In the order of preference."""
PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """The options of the console as the user gave them."""

    listen: Address
    is_admin: bool = False
    client_config: Path | None = None


def console_options(listen: str | None, is_admin: bool, client_config: Path | None) -> ConsoleOptions | None:
    """The options, None without a console; CommandFailed."""
    if listen is None:
        if is_admin or client_config is not None:
            raise CommandFailed("--console-admin and --console-client-config need --console HOST:PORT", BAD_USE)
        return None
    address = parse_address(listen, what="--console")
    return ConsoleOptions(listen=address, is_admin=is_admin, client_config=client_config)


class WebConsole:
    """The process; `ready_file` exists once it serves. CommandFailed if it cannot be planned."""

    def __init__(
        self,
        options: ConsoleOptions,
        directory: DataDirectory,
        plan: ClusterPlan,
        configs: Configs,
        write_line: Callable[[str], None],
    ) -> None:
        problem = bind_problem(options.listen) if options.listen.port else None
        if problem is not None:
            raise CommandFailed(f"cannot serve the console at {options.listen}: {problem}", BAD_USE)
        self.ready_file = directory.ready_file(NAME)
        command = console_command(options, directory, plan, configs)
        self._process = SupervisedProcess(
            ProcessPlan(name=NAME, command=command),
            write_line=lambda name, text: write_line(f"{name:>19} | {text}"),
            log=RotatingLog(directory.log_file(NAME)),
        )

    def start(self) -> None:
        self._process.start()

    async def stop(self) -> None:
        await self._process.stop()

    def address(self) -> str:
        """The address that was bound."""
        lines = self.ready_file.read_text(encoding="utf-8").splitlines()
        return dict(line.partition("=")[::2] for line in lines)["address"]


def console_command(
    options: ConsoleOptions, directory: DataDirectory, plan: ClusterPlan, configs: Configs
) -> list[str]:
    """The command line of the console's process; CommandFailed."""
    listener = console_listener(plan)
    client_config = options.client_config or _client_config(directory, plan, listener, configs)
    flags = {
        "--parent-pid": str(os.getpid()),
        "--coordinator-address": plan.coordinator_address,
        "--ready-file": str(directory.ready_file(NAME)),
        "--bootstrap-servers": str(_bootstrap(plan, listener)),
        "--console-listen": str(options.listen),
        "--console-admin": str(options.is_admin).lower(),
        "--memory-budget": str(MEMORY_BUDGET_BYTES),
    }
    if NAME in plan.metrics:
        flags["--metrics-listen"] = str(plan.metrics[NAME])
    if client_config is not None:
        flags["--client-config"] = str(client_config)
    if plan.config_file is not None:
        flags["--config"] = str(plan.config_file)
    if ADMINISTRATOR in plan.certificates:
        flags["--config-secret"] = str(plan.certificates[ADMINISTRATOR])
    return [sys.executable, "-m", "kshare_console", *(part for flag in flags.items() for part in flag)]


def console_listener(plan: ClusterPlan) -> GatewayListener | None:
    """The listener that the console connects to: one where users sign in, and without TLS if there is a choice."""
    return min(plan.listeners, key=lambda each: (not each.is_sasl, each.is_tls), default=None)


def _bootstrap(plan: ClusterPlan, listener: GatewayListener | None) -> Address:
    found = plan.client_address if listener is None else Address(listener.host, listener.port)
    return Address({"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(found.host, found.host), found.port)


def _client_config(
    directory: DataDirectory, plan: ClusterPlan, listener: GatewayListener | None, configs: Configs
) -> Path | None:
    """A file with the listener's protocol and mechanism; None for a plaintext listener. CommandFailed."""
    if plan.all_authenticate or (listener is not None and listener.is_tls):
        what = "a cluster that asks for credentials" if plan.all_authenticate else f"listener {listener}"
        raise CommandFailed(
            f"the console cannot know how clients connect to {what}: give --console-client-config FILE with "
            "security.protocol, ssl.ca.location and sasl.mechanism, as in --command-config",
            BAD_USE,
        )
    if listener is None or not listener.is_sasl:
        return None
    own = f"{listener.config_prefix}{ENABLED_MECHANISMS}"
    given = configs[own if own in configs.table and configs.is_set(own) else ENABLED_MECHANISMS]
    enabled = given if isinstance(given, tuple) else ()
    mechanism = next((each for each in MECHANISMS if each in enabled), None)
    if mechanism is None:
        found = ", ".join(map(str, enabled))
        text = f"the console signs users in with {', '.join(MECHANISMS)}, and listener {listener} enables {found}"
        raise CommandFailed(text, BAD_USE)
    path = directory.path / "console.properties"
    try:
        path.touch(mode=PRIVATE)
        path.write_text(f"security.protocol=sasl_plaintext\nsasl.mechanism={mechanism}\n", encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error}") from None
    return path
