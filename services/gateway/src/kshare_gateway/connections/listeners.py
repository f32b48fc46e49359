"""Client listeners: Kafka's `listeners`, `advertised.listeners` and their security protocol map.

Rules, as in Kafka (KafkaConfig, SocketServerConfigs): a listener is NAME://HOST:PORT, its name is upper-cased, and an
empty host means every interface. Each name and port may occur once (a port twice for an IPv4 and an IPv6 address).
`listener.security.protocol.map` gives the protocol of each name. An advertised address belongs to a listener, and
0.0.0.0 cannot be advertised. `advertised.listeners` defaults to `listeners`, with this machine's name for an empty
host.

`controller.listener.names` are the listeners of Kafka's controllers. A gateway does not open them: in an ordinary file
of a broker they have no authentication.

Narrower than Kafka: each listener is advertised, since gateways do not call each other by listeners.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.listener_names import LISTENER_PREFIX

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
EVERY_INTERFACE = ("0.0.0.0", "::")
LISTENER_LIMIT = 20
_LISTENER = re.compile(r"(?P<name>[0-9a-zA-Z_.\-]+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayListener:
    """One listening socket of a gateway; an empty `host` is every interface, `port` 0 picks a free one.

    Clients are told `advertised_host` and `advertised_port`; port 0 is the port that was bound.
    """

    name: str
    security_protocol: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int

    @property
    def is_tls(self) -> bool:
        return has_tls(self.security_protocol)

    @property
    def is_sasl(self) -> bool:
        return has_sasl(self.security_protocol)

    @property
    def config_prefix(self) -> str:
        """Prefix of configs that are given for this listener only."""
        return f"listener.name.{self.name.lower()}."

    def __str__(self) -> str:
        return f"{self.name}://{joined(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class _Written:
    """One entry of `listeners` or `advertised.listeners`."""

    name: str
    host: str
    port: int


def has_tls(security_protocol: str) -> bool:
    return security_protocol in (SSL, SASL_SSL)


def has_sasl(security_protocol: str) -> bool:
    return security_protocol in (SASL_PLAINTEXT, SASL_SSL)


def joined(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configured_listeners(configs: Configs, own_host: Callable[[], str]) -> tuple[GatewayListener, ...]:
    """The listeners that the config `listeners` names; none if it is not set. InvalidConfig.

    `own_host` returns the name of this machine; it is called only for a listener on every interface.
    """
    if not configs.is_set("listeners"):
        if configs.is_set("advertised.listeners"):
            raise InvalidConfig("advertised.listeners is set without listeners")
        for name in configs:
            if name.startswith(LISTENER_PREFIX) and configs.is_set(name):
                raise InvalidConfig(f"{name} is set without listeners")
        return ()
    of_controllers = _controller_names(configs)
    written = [entry for entry in _entries("listeners", configs["listeners"]) if entry.name not in of_controllers]
    if not written:
        text = "listeners has only those of controller.listener.names"
        raise InvalidConfig(f"{text}; a gateway does not open these, and needs one for clients")
    protocols = _protocols(configs)
    _check_ports(written)
    advertised = {entry.name: entry for entry in written}
    if configs.is_set("advertised.listeners"):
        advertised = _advertised(configs, advertised, of_controllers)
    _check_reachable(advertised.values())
    found = []
    for entry in written:
        if entry.name not in protocols:
            raise InvalidConfig(f"listeners has {entry.name}, which is missing in listener.security.protocol.map")
        endpoint = advertised[entry.name]
        found.append(
            GatewayListener(
                name=entry.name,
                security_protocol=_supported(entry.name, protocols[entry.name]),
                host=entry.host,
                port=entry.port,
                advertised_host=endpoint.host or own_host(),
                advertised_port=endpoint.port,
            )
        )
    return tuple(found)


def protocols_of_controllers(configs: Configs) -> frozenset[str]:
    """The security protocols of the listeners that a gateway does not open; InvalidConfig."""
    names = _controller_names(configs)
    return frozenset(protocol for name, protocol in _protocols(configs).items() if name in names)


def _controller_names(configs: Configs) -> frozenset[str]:
    value = configs["controller.listener.names"]
    return frozenset(name.upper() for name in value) if isinstance(value, tuple) else frozenset()


def _advertised(
    configs: Configs, listeners: Mapping[str, _Written], of_controllers: Collection[str]
) -> dict[str, _Written]:
    entries = _entries("advertised.listeners", configs["advertised.listeners"])
    found = {entry.name: entry for entry in entries if entry.name not in of_controllers}
    unknown = [name for name in found if name not in listeners]
    if unknown:
        raise InvalidConfig(f"advertised.listeners has {','.join(unknown)}, which listeners does not have")
    missing = [name for name in listeners if name not in found]
    if missing:
        text = f"advertised.listeners lacks {','.join(missing)}, which listeners has"
        raise InvalidConfig(f"{text}; each listener needs an advertised address")
    for entry in found.values():
        if entry.port == 0:
            raise InvalidConfig(f"advertised.listeners has port 0 for {entry.name}; clients cannot connect to it")
    return found


def _entries(config: str, value: object) -> list[_Written]:
    texts = [text for text in value if text] if isinstance(value, tuple) else []
    if not texts or len(texts) > LISTENER_LIMIT:
        raise InvalidConfig(f"{config} has {len(texts)} entries; 1 to {LISTENER_LIMIT} are allowed")
    found = [_entry(config, text) for text in texts]
    names = [entry.name for entry in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidConfig(f"{config} has {','.join(twice)} more than once")
    return found


def _check_reachable(advertised: Iterable[_Written]) -> None:
    """As in Kafka, what is advertised is no wildcard address, also where it is taken from `listeners`."""
    for entry in advertised:
        if entry.host in EVERY_INTERFACE:
            text = f"clients would be told {entry.name} at {entry.host}, a wildcard address"
            raise InvalidConfig(f"{text}; set advertised.listeners to an address or name that they can reach")


def _entry(config: str, text: str) -> _Written:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise InvalidConfig(f"{config} has {text!r}; an entry must be NAME://HOST:PORT, as in SSL://0.0.0.0:9093")
    return _Written(match["name"].upper(), match["host"], int(match["port"]))


def _check_ports(written: Sequence[_Written]) -> None:
    by_port: dict[int, list[_Written]] = {}
    for entry in written:
        if entry.port:
            by_port.setdefault(entry.port, []).append(entry)
    for port, entries in by_port.items():
        if len(entries) > 1 and not _differ_in_kind(entries):
            names = ",".join(entry.name for entry in entries)
            text = f"listeners has port {port} for {names}; each needs a port of its own"
            raise InvalidConfig(f"{text}, but for one IPv4 and one IPv6 address")


def _differ_in_kind(entries: Sequence[_Written]) -> bool:
    kinds = []
    for entry in entries:
        try:
            kinds.append(type(ip_address(entry.host)))
        except ValueError:
            return False
    return len(kinds) == 2 and set(kinds) == {IPv4Address, IPv6Address}


def _protocols(configs: Configs) -> dict[str, str]:
    value = configs.text("listener.security.protocol.map")
    found: dict[str, str] = {}
    for part in value.split(","):
        name, colon, protocol = part.strip().partition(":")
        if not colon or not name or not protocol or name.upper() in found:
            text = f"listener.security.protocol.map has {part.strip()!r}"
            raise InvalidConfig(f"{text}; it must be NAME:PROTOCOL, with commas between them, each name once")
        found[name.upper()] = protocol.upper()
    return found


def _supported(name: str, protocol: str) -> str:
    if protocol not in PROTOCOLS:
        text = f"listener.security.protocol.map has {protocol} for {name}; allowed are {' and '.join(PROTOCOLS)}"
        raise InvalidConfig(text)
    return protocol
