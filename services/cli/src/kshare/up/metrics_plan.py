"""The metrics addresses of the processes of `kshare up`: consecutive ports, then a free one for the web console."""

from __future__ import annotations

from collections.abc import Sequence

from kshare.addresses import Address, bind_problem, free_port
from kshare.failure import BAD_USE, CommandFailed

ALL_ROLES = "all roles"
"""The name of the process that runs every role."""


def plan_metrics(listen: Address, names: Sequence[str], *, taken: Sequence[int] = ()) -> dict[str, Address]:
    """Addresses by process: the port of `listen` for the first, the next one for the second and so on.

    Port 0 takes free ones, none of `taken`. CommandFailed where a port is not free.
    """
    found: dict[str, Address] = {}
    for number, name in enumerate(names):
        if listen.port == 0:
            used = (*taken, *(address.port for address in found.values()))
            found[name] = Address(listen.host, free_port(listen.host, taken=used))
            continue
        address = Address(listen.host, listen.port + number)
        problem = "the port is above 65535" if address.port > 65_535 else bind_problem(address)
        if problem is not None or address.port in taken:
            text = f"cannot serve the metrics of {name} at {address}: {problem or 'another listener has this port'}"
            raise CommandFailed(f"{text} (--metrics-listen {_ports_text(listen, len(names))})", BAD_USE)
        found[name] = address
    return found


def next_address(listen: Address, *, taken: Sequence[int]) -> Address:
    """The first address with a free port at or after that of `listen`, none of `taken`. CommandFailed."""
    if listen.port == 0:
        return Address(listen.host, free_port(listen.host, taken=tuple(taken)))
    for port in range(listen.port, 65_536):
        address = Address(listen.host, port)
        if port not in taken and bind_problem(address) is None:
            return address
    raise CommandFailed(
        f"no port at or after {listen} is free for the metrics of the console (--metrics-listen)", BAD_USE
    )


def _ports_text(listen: Address, count: int) -> str:
    if count == 1:
        return str(listen)
    return f"{listen} and the {'port' if count == 2 else f'{count - 1} ports'} after it"
