"""What a handler gets beside the request, and the ways in which it can end without an ordinary answer."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_gateway.gateway import Gateway
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


class ConnectionMustClose(Exception):
    """There is no answer that could tell the client what went wrong, so its connection is closed; the text says why."""
