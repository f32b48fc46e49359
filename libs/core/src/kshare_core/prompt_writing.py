"""A writer that sends small answers to the socket at once, not at the end of the event loop's turn.

uvloop collects the writes of one turn and sends them at its end. That suits many answers, but delays a single one by
all the work that follows it in the turn. The bytes bypass the transport only while its buffer is empty, so their order
is kept.
"""

from __future__ import annotations

import asyncio
import os


class PromptWriter:
    """Writes to a transport, or directly to its socket if the connection is plain (no TLS)."""

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
            except OSError:  # no room, or the connection is lost: the transport handles both
                sent = 0
        if sent < len(data):
            transport.write(memoryview(data)[sent:])
