"""The flags of a role's process; each may also be an environment variable KSHARE_<NAME>.

User configs (retention, limits, ...) are not here but in the file named by `config`, under Kafka's names. A flag takes
precedence over its variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from kshare_servicekit.flags import SettingsError, WrongValue, flag, parsed_flags, ratio, whole_number
from kshare_servicekit.properties import parse_properties

Settings = TypeVar("Settings", bound="ProcessSettings")
AnySettings = TypeVar("AnySettings", bound="ObservabilitySettings")


def host_and_port(value: str) -> str:
    """An address; WrongValue."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or "," in host or not port.isdecimal() or int(port) > 65_535:
        raise WrongValue("it must be host:port with a port from 0 to 65535, as in 127.0.0.1:9092")
    return value


def receiver(value: str) -> str:
    """An address, with http:// or https:// or without; WrongValue."""
    scheme, found, address = value.rpartition("://")
    if found and scheme not in ("http", "https"):
        raise WrongValue("it must be host:port or https://host:port, as in https://otel-collector:4317")
    host_and_port(address)
    return value


def hosts_and_ports(value: str) -> str:
    """One or several addresses, separated by commas; WrongValue."""
    addresses = [address.strip() for address in value.split(",")]
    if len(set(addresses)) < len(addresses):
        raise WrongValue("it must not name an address twice")
    return ",".join(map(host_and_port, addresses))


node_number = whole_number(0, 2**31 - 1)
port_number = whole_number(0, 65_535)


@dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """How lines are logged and where spans are sent, also of a process with all roles."""

    log_format: Literal["console", "json"] = flag(
        "The format of log lines.", str, default="console", choices=("console", "json")
    )
    log_level: Literal["debug", "info", "warning", "error"] = flag(
        "The lowest level that is logged.", str, default="info", choices=("debug", "info", "warning", "error")
    )
    trace_endpoint: str | None = flag(
        "The OTLP (gRPC) receiver of spans, https://host:port for TLS; default: no tracing.", receiver, default=None
    )
    trace_ratio: float = flag("Ratio of new traces that are recorded, from 0 to 1.", ratio, default=0.01)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ObservabilitySettings):
    """The settings of every role's process."""

    node_id: int = flag("Unique among the nodes of its role.", node_number)
    data_dir: Path = flag("The directory of the role's store; created if it is missing.", Path)
    listen: str = flag(
        "The listen address for other roles; port 0 picks a free one.", host_and_port, default="127.0.0.1:0"
    )
    advertised_address: str | None = flag(
        "The address for other roles, if it differs from --listen.", host_and_port, default=None
    )
    operations_listen: str = flag(
        "The listen address for health, reflection and unary gRPC; port 0 picks a free one.",
        host_and_port,
        default="127.0.0.1:0",
    )
    coordinator_address: str | None = flag(
        "The gRPC addresses (host:port) of all coordinators, separated by commas.", hosts_and_ports, default=None
    )
    config: Path | None = flag("A file of key=value lines under Kafka's and kshare's config names.", Path, default=None)
    config_secret: Path | None = flag(
        "A second such file, for secrets; it overrides the first one.", Path, default=None
    )
    config_upstream: Path | None = flag(
        "A third such file, for the connection to an existing cluster; it overrides the others.", Path, default=None
    )
    memory_budget: int | None = flag(
        "The memory budget of this process in bytes, in place of kshare.memory.budget.", whole_number(1), default=None
    )
    ready_file: Path | None = flag(
        "A file written when the role serves, with address=host:port and more lines.", Path, default=None
    )
    metrics_listen: str | None = flag("The listen address of /metrics; default: none.", host_and_port, default=None)
    parent_pid: int = flag(
        "End when the parent is no longer this process; 0: ignore the parent.", whole_number(0), default=0
    )

    start_pipe: int | None = flag(
        "A pipe's file descriptor: the node is loaded, and starts when the other end is closed; default: at once.",
        whole_number(0),
        default=None,
    )

    def properties(self) -> dict[str, str]:
        """The content of the config files, empty without one; SettingsError if one cannot be read."""
        found: dict[str, str] = {}
        for path in (self.config, self.config_secret, self.config_upstream):
            if path is None:
                continue
            try:
                found |= parse_properties(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise SettingsError(f"cannot read the config file {path}: {error}") from error
        return found


@dataclass(frozen=True, kw_only=True)
class GatewayProcessSettings(ProcessSettings):
    """The settings of a gateway's process, which stores nothing on disk."""

    data_dir: Path = flag("Not used by a gateway.", Path, default=Path())
    client_listen: str = flag("The listen address for Kafka clients.", host_and_port, default="127.0.0.1:9092")
    advertised_host: str | None = flag("The advertised host; default: client-listen's.", str, default=None)
    advertised_port: int | None = flag("The advertised port; default: the bound port.", port_number, default=None)
    listeners: str | None = flag(
        "Kafka's listeners, overriding the config file and client-listen: NAME://HOST:PORT,...", str, default=None
    )
    advertised_listeners: str | None = flag(
        "Kafka's advertised.listeners, overriding the config file: NAME://HOST:PORT,...", str, default=None
    )
    client_sockets: str | None = flag(
        "Sockets of the parent process that listen already, in place of binding: LISTENER=FILE_DESCRIPTOR,...",
        str,
        default=None,
    )


def read_settings(kind: type[AnySettings], arguments: Sequence[str], *, program: str) -> AnySettings:
    """Settings from flags, then the environment; SettingsError for a bad value, SystemExit for --help and bad flags."""
    return kind(**parsed_flags(kind, arguments, program=program))


def read_observability_settings() -> ObservabilitySettings:
    """The settings of a process with all roles, from the environment alone; SettingsError for a bad value."""
    return read_settings(ObservabilitySettings, [], program="kshare up")
