"""The context that a handler gets beside the request, and the exception that closes the connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kshare_core.work_slices import ElementCount, WorkAbandoned
from kshare_gateway.connections.request_memory import LEAST_ANSWER_BYTES, MemoryAccount
from kshare_gateway.gateway import Gateway
from kshare_gateway.share.fetching import ShareFetcher
from kshare_rpc.catalog import PLAINTEXT_LISTENER


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client, connection and version of a request. `client_host` is "/ip", as Kafka shows it."""

    gateway: Gateway
    share_fetcher: ShareFetcher
    connection_id: int
    client_host: str
    client_id: str
    version: int
    listener: str = PLAINTEXT_LISTENER
    """The client's listener: the client is told the addresses that gateways have for this listener."""
    is_wanted: Callable[[], bool] = lambda: True
    """False once the connection is closed, so that the response is of no use."""
    account: MemoryAccount | None = None
    """The connection's part of the gateway's memory; None: no limit."""

    def count_elements(self) -> ElementCount:
        """Counts the elements in a loop over the request or the catalog; see `kshare_core.work_slices`."""
        return ElementCount(self.gateway.slices, self.is_wanted)

    async def reserve_answer(
        self, asked_bytes: int, *, least_bytes: int = LEAST_ANSWER_BYTES, expected_bytes: int = 0
    ) -> int:
        """See `MemoryAccount.reserve_answer`; WorkAbandoned if the connection was closed meanwhile."""
        if self.account is None or asked_bytes <= 0:
            return asked_bytes
        granted = await self.account.reserve_answer(asked_bytes, least_bytes=least_bytes, expected_bytes=expected_bytes)
        if not granted:
            raise WorkAbandoned("the connection was closed before memory for its response was available")
        return granted


class ConnectionMustClose(Exception):
    """Closes the connection, because no response could tell the client what went wrong; the text says why."""
