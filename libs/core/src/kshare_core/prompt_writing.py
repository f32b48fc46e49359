"""Small answers go to the socket when they are made, not when the event loop's turn is over.

uvloop gathers what is written in one turn and sends it at the turn's end, which is right for many answers and late for
a single one: whoever waits for it waits for all that its maker does afterwards. The bytes go past the transport only
while it has nothing to send itself, so their order is kept.
"""

from __future__ import annotations

import asyncio
import os


class PromptWriter:
    """Writes to a transport, or to the socket below it where bytes go into that as they are (not with TLS)."""

    __slots__ = ("_descriptor", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        plain = transport.get_extra_info("socket") if transport.get_extra_info("sslcontext") is None else None
        self._descriptor: int | None = None if plain is None else plain.fileno()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As the transport's `write`; the socket may have taken the data when it returns."""
        transport, sent = self._transport, 0
        if self._descriptor is not None and not transport.is_closing() and not transport.get_write_buffer_size():
            try:
                sent = os.write(self._descriptor, data)
            except OSError:  # no room, or the connection is lost: the transport knows what to do
                sent = 0
        if sent < len(data):
            transport.write(memoryview(data)[sent:])
