"""Parsing of `HOST:PORT`, and the search for free ports."""

from __future__ import annotations

import random
import socket
import sys
from typing import NamedTuple

from kshare.arguments import is_unicode
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.whole_numbers import whole_number

ROLE_PORTS = range(20_000, 32_000)
"""Below Linux's ephemeral ports, so that the local port of an outgoing connection never takes a role's port."""

WILDCARD_HOSTS = ("0.0.0.0", "::")

_reservations: dict[int, socket.socket] = {}
"""By port: what keeps other processes from drawing it."""


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, *, what: str) -> Address:
    """Parses `HOST:PORT` (an IPv6 host in brackets); CommandFailed names the option `what`."""
    host, colon, digits = text.rpartition(":")
    port = whole_number(digits, 65_535)
    if not colon or not host or port is None or not is_unicode(host):
        raise CommandFailed(f"{what} must be HOST:PORT with a port from 0 to 65535, found {text!r}", BAD_USE)
    return Address(host.removeprefix("[").removesuffix("]"), port)


def parse_addresses(text: str, *, what: str) -> list[Address]:
    """Parses `HOST:PORT[,…]`, as Kafka's clients take it; CommandFailed names the option `what`."""
    return [parse_address(each.strip(), what=what) for each in text.split(",")]


def bind_problem(address: Address) -> str | None:
    """The reason why the address cannot be bound; None when it can.

    The probe does not listen: a client that waits for this address would connect to it, and be reset when it closes.
    Linux refuses to bind an address at which another socket listens, with SO_REUSEADDR as well.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(tuple(address))
        except (OSError, UnicodeError) as error:
            return str(error)
    return None


def free_port(host: str, *, remembered: int | None = None, taken: tuple[int, ...] = ()) -> int:
    """A port that can be bound: `remembered` if it is still free, else another one; CommandFailed.

    It is reserved until this process ends: a second `kshare up`, which starts before the roles of the first listen,
    draws other ports.
    """

    def is_free(port: int) -> bool:
        return port not in taken and bind_problem(Address(host, port)) is None

    if remembered is not None and is_free(remembered) and (remembered in _reservations or _reserve(remembered)):
        return remembered
    for port in random.sample(ROLE_PORTS, 200):
        if is_free(port) and _reserve(port):
            return port
    problem = bind_problem(Address(host, 0)) or f"none of 200 ports from {ROLE_PORTS.start} on is free"
    raise CommandFailed(f"cannot listen on {host}: {problem}", BAD_USE)


def _reserve(port: int) -> bool:
    """False if the port is reserved, by this process or another one.

    A reservation is an abstract Unix socket's name (Linux), which exists in the network namespace as the port does and
    ends with its process. A socket at the port itself would keep the role from binding it.
    """
    if sys.platform != "linux":
        return True
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0kshare-port-{port}")
    except OSError:
        reservation.close()
        return False
    _reservations[port] = reservation
    return True
