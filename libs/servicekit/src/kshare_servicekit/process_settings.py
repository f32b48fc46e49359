"""The flags of a role's process; each may also be an environment variable KSHARE_<NAME>.

User configs (retention, limits, ...) are not here but in the file named by `config`, under Kafka's names. A flag takes
precedence over its variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict

from kshare_servicekit.properties import parse_properties

Settings = TypeVar("Settings", bound="ProcessSettings")
AnySettings = TypeVar("AnySettings", bound="TraceSettings")


class SettingsError(Exception):
    """A flag, a variable or the config file is wrong; the text says which, with which value, and what is allowed."""


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or "," in host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("must be host:port with a port from 0 to 65535, as in 127.0.0.1:9092")
    return value


def _hosts_and_ports(value: str) -> str:
    addresses = [address.strip() for address in value.split(",")]
    if len(set(addresses)) < len(addresses):
        raise ValueError("must not name an address twice")
    return ",".join(map(_host_and_port, addresses))


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]
HostsAndPorts = Annotated[str, AfterValidator(_hosts_and_ports)]
"""One or several, separated by commas."""
Port = Annotated[int, Field(ge=0, le=65_535)]


class TraceSettings(BaseSettings):
    """Where spans are sent, also of a process with all roles."""

    model_config = SettingsConfigDict(env_prefix="KSHARE_", env_ignore_empty=True, frozen=True)

    trace_endpoint: HostAndPort | None = Field(
        None, description="The OTLP (gRPC) receiver of spans; default: no tracing."
    )
    trace_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01, description="Ratio of new traces that are recorded, from 0 to 1."
    )


class ProcessSettings(TraceSettings):
    """The settings of every role's process."""

    model_config = SettingsConfigDict(
        env_prefix="KSHARE_",
        env_ignore_empty=True,
        frozen=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    node_id: Annotated[int, Field(ge=0, lt=2**31)] = Field(description="Unique among the nodes of its role.")
    data_dir: Path = Field(description="The directory of the role's store; created if it is missing.")
    listen: HostAndPort = Field(
        "127.0.0.1:0", description="The listen address for other roles; port 0 picks a free one."
    )
    advertised_address: HostAndPort | None = Field(
        None, description="The address for other roles, if it differs from --listen."
    )
    operations_listen: HostAndPort = Field(
        "127.0.0.1:0", description="The listen address for health, reflection and unary gRPC; port 0 picks a free one."
    )
    coordinator_address: HostsAndPorts | None = Field(
        None, description="The gRPC addresses (host:port) of all coordinators, separated by commas."
    )
    config: Path | None = Field(None, description="A file of key=value lines under Kafka's and kshare's config names.")
    config_secret: Path | None = Field(None, description="A second such file, for secrets; it overrides the first one.")
    config_upstream: Path | None = Field(
        None, description="A third such file, for the connection to an existing cluster; it overrides the others."
    )
    ready_file: Path | None = Field(
        None, description="A file written when the role serves, with address=host:port and more lines."
    )
    log_format: Literal["console", "json"] = Field("console", description="The format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged."
    )
    metrics_listen: HostAndPort | None = Field(None, description="The listen address of /metrics; default: none.")
    parent_pid: int = Field(0, description="End when the parent is no longer this process; 0: ignore the parent.")

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


class GatewayProcessSettings(ProcessSettings):
    """The settings of a gateway's process, which stores nothing on disk."""

    data_dir: Path = Field(Path(), description="Not used by a gateway.")
    client_listen: HostAndPort = Field("127.0.0.1:9092", description="The listen address for Kafka clients.")
    advertised_host: str | None = Field(None, description="The advertised host; default: client-listen's.")
    advertised_port: Port | None = Field(None, description="The advertised port; default: the bound port.")
    listeners: str | None = Field(
        None, description="Kafka's listeners, overriding the config file and client-listen: NAME://HOST:PORT,..."
    )
    advertised_listeners: str | None = Field(
        None, description="Kafka's advertised.listeners, overriding the config file: NAME://HOST:PORT,..."
    )


def read_settings(kind: type[AnySettings], arguments: Sequence[str], *, program: str) -> AnySettings:
    """Settings from flags, then the environment; SettingsError for a bad value, SystemExit for --help and bad flags."""
    flags: CliSettingsSource[AnySettings] = CliSettingsSource(kind, cli_prog_name=program, cli_exit_on_error=True)
    try:
        return CliApp.run(kind, cli_args=list(arguments), cli_settings_source=flags)
    except ValidationError as error:
        raise SettingsError("; ".join(_problem(kind, detail["loc"], detail) for detail in error.errors())) from error


def read_trace_settings() -> TraceSettings:
    """Trace settings from the environment alone; SettingsError for a bad value."""
    return read_settings(TraceSettings, [], program="kshare up")


def _problem(kind: type[BaseSettings], location: tuple[int | str, ...], detail: object) -> str:
    assert isinstance(detail, dict)
    name = str(location[0]) if location else "settings"
    flag = f"--{name.replace('_', '-')} (or KSHARE_{name.upper()})"
    if detail["type"] == "missing":
        return f"{flag} is missing: {kind.model_fields[name].description}"
    return f"{flag} is {detail['input']!r}: {detail['msg']}"
