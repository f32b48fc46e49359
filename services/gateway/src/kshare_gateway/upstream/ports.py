"""The ports of mode proxy: at each listener, one for every broker of the existing cluster.

A client that is told the port of a broker here reaches that broker through this gateway. The port of `listeners` is for
clients that know no broker yet. Brokers get their ports in the order of their ids when the gateway starts, and later
ones when they first appear. A broker that vanished keeps its port for FORGOTTEN_AFTER_MS, since it mostly comes back.
A broker for which no port can be opened is a problem of the cluster's health, and is tried again each time.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kshare_core.configs import Configs, InvalidConfig
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.gateway import log, loop_ms
from kshare_rpc.catalog import ClientEndpoint

PORT_RANGE = "kshare.upstream.proxy.port.range"
FORGOTTEN_AFTER_MS = 600_000
BROKERS_LIMIT = 1_000
"""Limit of the brokers that have ports."""
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")

ClosePort = Callable[[], Awaitable[None]]
OpenPort = Callable[[GatewayListener, int, int], Awaitable[tuple[int, ClosePort]]]
"""Opens a port of a listener (0: a free one) for a broker id; the port that was bound, and what closes it. OSError."""


@dataclass(slots=True)
class _Opened:
    port: int
    close: ClosePort


class BrokerPorts:
    """See the module docstring; InvalidConfig for a range that is none."""

    def __init__(self, configs: Configs, listeners: Sequence[GatewayListener], open_port: OpenPort) -> None:
        self._range = port_range(configs)
        self._listeners = {listener.name: listener for listener in listeners}
        self._open_port = open_port
        self._opened: dict[tuple[str, int], _Opened] = {}
        self._last_seen_ms: dict[int, int] = {}
        self._covering = asyncio.Lock()
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
            for broker_id in alive:
                for listener in self._listeners.values():
                    if (listener.name, broker_id) not in self._opened:
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

    async def _open(self, listener: GatewayListener, broker_id: int) -> str | None:
        """The reason if no port could be opened."""
        if len(self._opened) >= BROKERS_LIMIT * len(self._listeners):
            return f"{BROKERS_LIMIT} brokers have one"
        taken = {opened.port for opened in self._opened.values()}
        for port in self._candidates(listener):
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
        return f"the ports {self._range[0]}-{self._range[-1]} of {PORT_RANGE} are in use; widen it"

    def _candidates(self, listener: GatewayListener) -> Sequence[int]:
        if self._range is not None:
            return self._range
        if listener.port == 0:
            return (0,)
        return range(listener.port + 1, min(65_536, listener.port + 1 + BROKERS_LIMIT))

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
