"""What a handler gets beside the request, and the ways in which it can end without an ordinary answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kshare_core.work_slices import ElementCount, WorkAbandoned
from kshare_gateway.gateway import Gateway
from kshare_gateway.request_memory import LEAST_ANSWER_BYTES, MemoryAccount
from kshare_gateway.share_fetching import ShareFetcher
from kshare_rpc.catalog import PLAINTEXT_LISTENER


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version. `client_host` is "/ip", as Kafka shows it."""

    gateway: Gateway
    share_fetcher: ShareFetcher
    connection_id: int
    client_host: str
    client_id: str
    version: int
    listener: str = PLAINTEXT_LISTENER
    """The listener that the client came by: it is told the addresses that gateways have for clients of this one."""
    is_wanted: Callable[[], bool] = lambda: True
    """False once the connection is closed: then nobody waits for the answer."""
    account: MemoryAccount | None = None
    """What the connection holds of the gateway's memory; None: there is no limit."""

    def count_elements(self) -> ElementCount:
        """For a loop over elements of the request or of the catalog; see `kshare_core.work_slices`."""
        return ElementCount(self.gateway.slices, self.is_wanted)

    async def reserve_answer(
        self, asked_bytes: int, *, least_bytes: int = LEAST_ANSWER_BYTES, expected_bytes: int = 0
    ) -> int:
        """See `MemoryAccount.reserve_answer`; WorkAbandoned where the connection was closed meanwhile."""
        if self.account is None or asked_bytes <= 0:
            return asked_bytes
        granted = await self.account.reserve_answer(asked_bytes, least_bytes=least_bytes, expected_bytes=expected_bytes)
        if not granted:
            raise WorkAbandoned("the connection was closed before there was room for its answer")
        return granted


class ConnectionMustClose(Exception):
    """There is no answer that could tell the client what went wrong, so its connection is closed; the text says why."""
