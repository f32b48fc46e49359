"""A BackgroundSync for a loop with virtual time, which waits for no file and no thread: it syncs in its next turn."""

from __future__ import annotations

import asyncio
import os

from kshare_runtime.background_sync import Ended


class SyncInLoop:
    """Syncs in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None

    def begin(self, descriptor: int, ended: Ended) -> None:
        self._handle = self._loop.call_soon(self._sync, descriptor, ended)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _sync(self, descriptor: int, ended: Ended) -> None:
        os.fdatasync(descriptor)
        ended(True)
