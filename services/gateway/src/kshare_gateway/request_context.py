"""What a handler gets beside the request, and the ways in which it can end without an ordinary answer."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_gateway.gateway import Gateway
from kshare_gateway.share_fetching import ShareFetcher


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version. `client_host` is "/ip", as Kafka shows it."""

    gateway: Gateway
    share_fetcher: ShareFetcher
    connection_id: int
    client_host: str
    client_id: str
    version: int


class ConnectionMustClose(Exception):
    """There is no answer that could tell the client what went wrong, so its connection is closed; the text says why."""
