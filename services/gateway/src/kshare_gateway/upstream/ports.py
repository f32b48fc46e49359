"""The ports of mode proxy: at each listener, one for every broker of the existing cluster.

A client that is told the port of a broker here reaches that broker through this gateway. The port of `listeners` is for
clients that know no broker yet.

- With PORT_RANGE, a broker's port is the one at its id modulo the length of the range. Several gateways behind one
  address therefore tell the same ports, whatever they saw of the cluster and in which order. Of live brokers with the
  same port, the one with the lowest id has it, and the others have none. Several listeners share the range in equal,
  consecutive parts, in their order.
- Without it, brokers get the next free ports after the listener's own: in the order of their ids when the gateway
  starts, and later ones when they first appear. Gateways may then differ, so each needs an address of its own.

A broker that vanished keeps its port for FORGOTTEN_AFTER_MS, since it mostly comes back, unless a live broker has the
same one. A broker without a port is a problem of the cluster's health, and is tried again each time.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice

from kshare_core.configs import Configs, InvalidConfig
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.gateway import log, loop_ms
from kshare_rpc.catalog import ClientEndpoint

PORT_RANGE = "kshare.upstream.proxy.port.range"
FORGOTTEN_AFTER_MS = 600_000
BROKERS_LIMIT = 1_000
"""Limit of the brokers that have ports."""
WIDTHS_TRIED = 1_000
"""Limit of the lengths that are tried for a range in which no two brokers have the same port."""
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")

ClosePort = Callable[[], Awaitable[None]]
OpenPort = Callable[[GatewayListener, int, int], Awaitable[tuple[int, ClosePort]]]
"""Opens a port of a listener (0: a free one) for a broker id; the port that was bound, and what closes it. OSError."""


@dataclass(slots=True)
class _Opened:
    port: int
    close: ClosePort


class BrokerPorts:
    """See the module docstring; InvalidConfig for a range that is none, or does not fit the listeners."""

    def __init__(self, configs: Configs, listeners: Sequence[GatewayListener], open_port: OpenPort) -> None:
        self._range = port_range(configs)
        self._listeners = {listener.name: listener for listener in listeners}
        self._parts = {} if self._range is None else _parts(self._range, listeners)
        """The ports of each listener in the range."""
        self._open_port = open_port
        self._opened: dict[tuple[str, int], _Opened] = {}
        self._last_seen_ms: dict[int, int] = {}
        self._covering = asyncio.Lock()
        self._separating: tuple[tuple[int, ...], int] = ((), 0)
        """The ids for which a separating width was computed last, and this width."""
        self._has_covered = False
        """Whether `cover` has ended once: what cannot be opened later ends neither the gateway nor its refreshes."""
        self._problems: dict[str, str] = {}
        """The brokers without a port, by listener."""

    async def cover(self, broker_ids: Iterable[int]) -> None:
        """Opens the ports of brokers that have none, and closes those of brokers that are gone for long."""
        now_ms = loop_ms()
        alive = sorted(broker_ids)
        for broker_id in alive:
            self._last_seen_ms[broker_id] = now_ms
        async with self._covering:
            for broker_id in [*self._last_seen_ms]:
                if now_ms - self._last_seen_ms[broker_id] >= FORGOTTEN_AFTER_MS:
                    await self._forget(broker_id)
            missing: dict[str, dict[int, str]] = {name: {} for name in self._listeners}
            for listener in self._listeners.values():
                holders = self._holders(listener, alive)
                await self._take_back(listener, holders)
                for broker_id in alive:
                    holder = holders[self._place(listener, broker_id)]
                    if holder != broker_id:
                        missing[listener.name][broker_id] = self._collision(listener, holder, broker_id, alive)
                    elif (listener.name, broker_id) not in self._opened:
                        reason = await self._open(listener, broker_id)
                        if reason is not None:
                            missing[listener.name][broker_id] = reason
            self._note(missing)
            self._has_covered = True

    def problems(self) -> list[str]:
        """A sentence for each listener at which brokers have no port."""
        return [*self._problems.values()]

    def endpoint(self, listener: str, broker_id: int) -> ClientEndpoint | None:
        """What clients of a listener are told for a broker; None if it has no port."""
        opened = self._opened.get((listener, broker_id))
        return None if opened is None else ClientEndpoint(self._listeners[listener].advertised_host, opened.port)

    def ports(self) -> dict[tuple[str, int], int]:
        """The open ports, by listener and broker id."""
        return {key: opened.port for key, opened in self._opened.items()}

    async def close(self) -> None:
        opened, self._opened = self._opened, {}
        for each in opened.values():
            await each.close()

    def _note(self, missing: Mapping[str, Mapping[int, str]]) -> None:
        """Notes the brokers that have no port, with the reasons; a line in the log whenever they change."""
        problems = {}
        for name, reasons in missing.items():
            if reasons:
                brokers = f"brokers {', '.join(map(str, reasons))} of the existing cluster have no port"
                why = "; ".join(dict.fromkeys(reasons.values()))
                problems[name] = f"{brokers} at listener {name}, so its clients are not told of them: {why}"
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                log.error("%s", problem)
        self._problems = problems

    def _place(self, listener: GatewayListener, broker_id: int) -> int:
        """What two brokers have in common if they have the same port: its index in the range, else the id itself."""
        part = self._parts.get(listener.name)
        return broker_id if part is None else broker_id % len(part)

    def _holders(self, listener: GatewayListener, alive: Sequence[int]) -> dict[int, int]:
        """The live broker that has each port, by place: the lowest id, which every gateway comes to alike."""
        holders: dict[int, int] = {}
        for broker_id in alive:
            holders.setdefault(self._place(listener, broker_id), broker_id)
        return holders

    async def _take_back(self, listener: GatewayListener, holders: Mapping[int, int]) -> None:
        """Closes the ports that are another broker's now."""
        for name, broker_id in [*self._opened]:
            if name == listener.name and holders.get(self._place(listener, broker_id), broker_id) != broker_id:
                await self._opened.pop((name, broker_id)).close()

    def _collision(self, listener: GatewayListener, holder: int, broker_id: int, alive: Sequence[int]) -> str:
        part = self._parts[listener.name]
        port = part[self._place(listener, broker_id)]
        needed = self._separating_width(alive, len(part)) * len(self._listeners)
        each = "ports" if len(self._listeners) == 1 else "ports for each listener"
        what = f"brokers {holder} and {broker_id} have the same port {port}"
        why = f"their ids differ by a multiple of the {len(part)} {each} of {PORT_RANGE}"
        return f"{what}, because {why}; set it to a range of {needed} ports"

    def _separating_width(self, alive: Sequence[int], width: int) -> int:
        """`_separating_width`, computed once for the same brokers; all listeners have parts of the same width."""
        ids = tuple(alive)
        if self._separating[0] != ids:
            self._separating = (ids, _separating_width(ids, width))
        return self._separating[1]

    async def _open(self, listener: GatewayListener, broker_id: int) -> str | None:
        """The reason if no port could be opened."""
        if len(self._opened) >= BROKERS_LIMIT * len(self._listeners):
            return f"{BROKERS_LIMIT} brokers have one"
        taken = {opened.port for opened in self._opened.values()}
        for port in self._candidates(listener, broker_id):
            if port in taken and port:
                continue
            try:
                bound, close = await self._open_port(listener, port, broker_id)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                if not self._opened and not self._has_covered:
                    raise  # at the start: ports that this process may not open
                return f"port {port} cannot be opened: {error}"
            self._opened[listener.name, broker_id] = _Opened(bound, close)
            log.info("port %d of listener %s is for broker %d of the cluster", bound, listener.name, broker_id)
            return None
        if self._range is None:
            return f"no port after the listener's own is free; set {PORT_RANGE}"
        port = self._parts[listener.name][self._place(listener, broker_id)]
        return f"port {port} of {PORT_RANGE} is in use by something else; free it, or set another range"

    def _candidates(self, listener: GatewayListener, broker_id: int) -> Iterable[int]:
        """The ports that a broker may have, the preferred one first."""
        part = self._parts.get(listener.name)
        if part is not None:
            return (part[self._place(listener, broker_id)],)
        if listener.port == 0:
            return (0,)
        # The listeners are bound but do not listen yet, so their own ports could be opened here a second time.
        own = {each.port for each in self._listeners.values()}
        return islice((port for port in range(listener.port + 1, 65_536) if port not in own), BROKERS_LIMIT)

    async def _forget(self, broker_id: int) -> None:
        del self._last_seen_ms[broker_id]
        for key in [key for key in self._opened if key[1] == broker_id]:
            await self._opened.pop(key).close()


def port_range(configs: Configs) -> range | None:
    """The range of PORT_RANGE; None if it is not given. InvalidConfig."""
    text = configs.text(PORT_RANGE)
    if not text:
        return None
    match = _RANGE.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= int(match[2]) < 65_536:
        raise InvalidConfig(f"{PORT_RANGE} must be FROM-TO, such as 19093-19119; found {text!r}")
    return range(int(match[1]), int(match[2]) + 1)


def _parts(ports: range, listeners: Sequence[GatewayListener]) -> dict[str, range]:
    """The part of the range that each listener has, by its name; InvalidConfig."""
    text = f"{PORT_RANGE}={ports[0]}-{ports[-1]}"
    if len(ports) < len(listeners):
        raise InvalidConfig(f"{text} has {len(ports)} ports for {len(listeners)} listeners; each needs one per broker")
    width = len(ports) // max(1, len(listeners))
    parts = {each.name: ports[index * width : (index + 1) * width] for index, each in enumerate(listeners)}
    for opening in listeners:
        for listener in listeners:
            if listener.port in parts[opening.name] and _may_share_address(opening.host, listener.host):
                problem = f"has port {listener.port}, where listener {listener.name} itself listens"
                raise InvalidConfig(f"{text} {problem}; set a range without the ports of listeners")
    return parts


def _may_share_address(one_host: str, other_host: str) -> bool:
    """Whether the same port of both hosts may be one socket's; a host is as in `listeners`."""
    try:
        one, other = ip_address(one_host), ip_address(other_host)
    except ValueError:
        return True  # an empty host is every interface, and a name may have any address
    # A wildcard address is only that of its own version: sockets of IPv6 take no IPv4.
    return one.version == other.version and (one == other or one.is_unspecified or other.is_unspecified)


def _separating_width(broker_ids: Sequence[int], width: int) -> int:
    """A length above `width`, mostly the shortest, of a range in which these brokers have a port each."""
    tried = range(max(width + 1, len(broker_ids)), width + WIDTHS_TRIED)
    return next((each for each in tried if _are_separate(broker_ids, each)), max(broker_ids) + 1)


def _are_separate(broker_ids: Sequence[int], width: int) -> bool:
    """Whether the brokers have a port each; ends at the first collision, which mostly is among the first ids."""
    places: set[int] = set()
    for broker_id in broker_ids:
        place = broker_id % width
        if place in places:
            return False
        places.add(place)
    return True
