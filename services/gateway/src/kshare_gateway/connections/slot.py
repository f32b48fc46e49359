"""The place of a response in the order of a connection's responses, which is that of the requests."""

from __future__ import annotations

import asyncio
from typing import Any

from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.served_apis import ResponseSize
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import Buffer

GROUP_WAIT = len(ResponseSize)
"""The lane of requests that wait for other members of their group."""
LANES = {int(api_key): int(served.size) for api_key, served in SERVED_APIS.items()} | {
    int(api_key): GROUP_WAIT for api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
}
"""Lanes are sizes of responses, and GROUP_WAIT: at most one request of a lane is in flight on a connection, save in
lane 0 (SHORT)."""


class Slot:
    """A response's place. Empty `buffers`: the request has no response."""

    __slots__ = (
        *("api_key", "buffers", "busy_s", "elements", "is_done", "lane", "request_bytes", "started_at", "task"),
        "version",
    )

    def __init__(self, api_key: int, version: int, request_bytes: int, started_at: float) -> None:
        self.elements = 0
        """Elements of a request of SLICED_REQUEST_BYTES or more; shorter ones have so few that they are not counted."""
        self.task: asyncio.Task[Any] | None = None
        """The task of a request in the lane GROUP_WAIT, which ends with its connection."""
        self.busy_s = 0.0
        """How long the event loop worked for the request, where a quota needs it."""
        self.api_key = api_key
        self.version = version
        self.started_at = started_at
        self.request_bytes = request_bytes
        self.buffers: list[Buffer] = []
        self.is_done = False
        self.lane = LANES.get(api_key, 0)

    def add_busy(self, seconds: float) -> None:
        self.busy_s += seconds
