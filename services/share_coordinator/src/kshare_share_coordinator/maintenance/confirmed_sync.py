"""Periodic sync of the note of confirmed writes, every SYNC_INTERVAL_MS (`kshare_runtime.confirmed_writes`).

No write waits for it. After a power cut the note is at most so much older than the newest confirmed write.
"""

from __future__ import annotations

import asyncio

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_share_coordinator.checksummed_store import ChecksummedStore

SYNC_INTERVAL_MS = 1_000


class ConfirmedSync:
    """A task for a store on a disk; nothing for one in memory."""

    def __init__(self, store: ChecksummedStore) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._store.maintained is not None:
            work = restarted_after_bugs("the sync of the note of confirmed writes", self._run)
            self._task = asyncio.get_running_loop().create_task(work, name="sync-confirmed")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        maintained = self._store.maintained
        assert maintained is not None
        while True:
            await asyncio.sleep(SYNC_INTERVAL_MS / 1000)
            maintained.sync_confirmed()
