"""The flags of the console's process. Each may also be a variable KSHARE_<NAME>.

Its `config` file has the certificate of role `administrator` with which it calls roles (kshare.rpc.ssl.*). HTTP is
served, or HTTPS with `--console-certificate`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from kshare_kafka_client.client_security import InvalidSecurity, sasl_mechanism, tls_context, uses_sasl
from kshare_servicekit.flags import SettingsError, WrongValue, flag, whole_number
from kshare_servicekit.process_settings import ProcessSettings, host_and_port, hosts_and_ports, node_number
from kshare_servicekit.properties import parse_properties

LOOPBACK_NAMES = ("localhost",)


def yes_or_no(value: str) -> bool:
    """true or false; WrongValue."""
    if value not in ("true", "false"):
        raise WrongValue("it must be true or false")
    return value == "true"


def names(value: str) -> tuple[str, ...]:
    """Host names, separated by commas."""
    return tuple(part.strip().lower() for part in value.split(",") if part.strip())


@dataclass(frozen=True, kw_only=True)
class ConsoleProcessSettings(ProcessSettings):
    """The settings of the process."""

    node_id: int = flag("For log lines only.", node_number, default=1)
    data_dir: Path = flag("Not used by a console, which stores nothing.", Path, default=Path())
    bootstrap_servers: str = flag("Gateways of the cluster: host:port, with commas between them.", hosts_and_ports)
    console_listen: str = flag("The listen address of the console.", host_and_port, default="127.0.0.1:8080")
    console_admin: bool = flag(
        "Allow release, reject, redrive, drain and altering of group configs: true or false.",
        yes_or_no,
        default=False,
    )
    client_config: Path | None = flag(
        "A file with the clients' security.protocol, ssl.* and sasl.mechanism; with SASL users sign in.",
        Path,
        default=None,
    )
    allowed_hosts: tuple[str, ...] = flag(
        "Names under which browsers reach the console, with commas between them; addresses and localhost always are.",
        names,
        default=(),
    )
    console_certificate: Path | None = flag(
        "A PEM file with certificate and key, or a folder with tls.crt and tls.key, to serve HTTPS; default: HTTP. "
        "They are read again when they change.",
        Path,
        default=None,
    )
    connections_limit: int = flag("Open connections of browsers.", whole_number(1, 10_000), default=500)
    streams_limit: int = flag("Open live streams.", whole_number(1, 5_000), default=200)

    def client_properties(self) -> dict[str, str]:
        """The content of `client_config`, empty without one; SettingsError."""
        if self.client_config is None:
            return {}
        try:
            found = parse_properties(self.client_config.read_text(encoding="utf-8"))
            tls_context(found)
            if uses_sasl(found):
                sasl_mechanism(found)
        except (OSError, InvalidSecurity, ValueError) as error:
            raise SettingsError(f"cannot use the client config {self.client_config}: {error}") from None
        return found

    def is_on_loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        host = self.console_listen.rpartition(":")[0].strip("[]")
        if host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False
