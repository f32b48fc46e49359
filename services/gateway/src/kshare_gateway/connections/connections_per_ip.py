"""The limit of client connections from one address: max.connections.per.ip and its overrides (ConnectionQuotas).

Both configs are dynamic. An override for a host name applies to the addresses that the name had when the override was
set; they are looked up in the background, and until then the name has no limit of its own. A look-up that fails is
repeated every LOOK_UP_RETRY_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from kshare_core.configs import Configs
from kshare_core.configs.connection_limits import connection_overrides
from kshare_core.security.addresses import address_text, is_address
from kshare_gateway.gateway import log
from kshare_rpc.names import LookUp

NO_PORT = 0
LOOK_UP_RETRY_S = 30.0


class Timer(Protocol):
    def cancel(self) -> object: ...


class ConnectionsPerIp:
    """Counts connections by address.

    `spawn` runs the look-up of a host name, and `call_later` (seconds, callback) begins a further one.
    """

    def __init__(
        self,
        configs: Configs,
        *,
        look_up: LookUp,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._configs = configs
        self._look_up = look_up
        self._spawn = spawn
        self._call_later = call_later
        self._retry: Timer | None = None
        self._failed: dict[str, int] = {}
        """The hosts whose last look-up failed, and their limits."""
        self._counts: Counter[str] = Counter()
        self._overrides_text = ""
        self._limits: dict[str, int] = {}

    def refusal(self, address: str, in_handshake: int = 0) -> str | None:
        """Why a further connection from the address is refused, or None; `in_handshake` are not counted here yet."""
        limit = self._limit(address)
        if self._counts[address] + in_handshake < limit:
            return None
        return f"the limit of {limit} connections from one address is reached (max.connections.per.ip)"

    def opened(self, address: str) -> None:
        self._counts[address] += 1

    def closed(self, address: str) -> None:
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]

    def configs_changed(self) -> None:
        """To be called for each view of the catalog: takes new overrides, and begins to look host names up."""
        text = self._configs.text("max.connections.per.ip.overrides")
        if text != self._overrides_text:
            self._overrides_text = text
            self._take_overrides(text)

    def _limit(self, address: str) -> int:
        if self._limits and (limit := self._limits.get(address_text(address))) is not None:
            return limit
        return self._configs.integer("max.connections.per.ip")

    def close(self) -> None:
        """Ends look-ups that are repeated."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _take_overrides(self, text: str) -> None:
        self.close()
        self._limits, self._failed = {}, {}
        for host, limit in connection_overrides(text).items():
            if is_address(host):
                self._limits[address_text(host)] = limit
            else:
                self._spawn(self._resolve(text, host, limit), f"look-up of {host}")

    async def _resolve(self, text: str, host: str, limit: int) -> None:
        try:
            addresses = await self._look_up(host, NO_PORT)
        except (OSError, TimeoutError) as failure:
            if text == self._overrides_text:
                self._look_up_later(host, limit, failure)
            return
        if text != self._overrides_text:
            return
        self._limits |= {address_text(address): limit for address in addresses}
        if self._failed.pop(host, None) is not None:
            log.info("max.connections.per.ip.overrides has its effect for %s, which was found now", host)

    def _look_up_later(self, host: str, limit: int, failure: Exception) -> None:
        if host not in self._failed:
            text = "max.connections.per.ip.overrides has no effect for %s until it is found, its look-up failed: %s"
            log.error(text, host, failure)
        self._failed[host] = limit
        if self._retry is None:
            self._retry = self._call_later(LOOK_UP_RETRY_S, self._look_up_failed)

    def _look_up_failed(self) -> None:
        self._retry = None
        for host, limit in self._failed.items():
            self._spawn(self._resolve(self._overrides_text, host, limit), f"look-up of {host}")
