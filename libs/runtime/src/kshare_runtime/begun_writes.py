"""Writes that RocksDB has taken without a sync, and that become durable beside the event loop, in order.

RocksDB's Python binding holds the interpreter's lock while it writes and syncs, so a sync by RocksDB stops the process.
Instead, its newest write-ahead log is synced through a descriptor of our own. All writes that were begun before a sync
share it, and those that come meanwhile share the next one.

When RocksDB begins a new log, it is told to sync (`sync_by_database`): it then syncs the log before, the new one and
the entry of the new one in its directory. It is also asked where our own sync failed: what it says decides, and after a
failure of its own it refuses writes as after a failed write.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import BackgroundSync

Done = Callable[[StorageFailure | None], None]
"""Called once, by the event loop: with None when the write is durable, else with the failure."""


class _Begun(NamedTuple):
    sequence: int
    manifest_bytes: int
    done: Done


class BegunWrites:
    """The begun writes of one store's directory.

    Each owner begins its next write when the one before has ended: what a power cut leaves of several unsynced ones
    may look like damage.

    `sync_by_database` makes all durable, or raises StorageFailure. `note` is called with the number of the newest
    durable write and the manifest's length before that write.
    """

    def __init__(
        self,
        directory: Path,
        *,
        sync_by_database: Callable[[], None],
        note: Callable[[int, int], None],
        new_sync: Callable[[asyncio.AbstractEventLoop], BackgroundSync],
    ) -> None:
        self._new_sync = new_sync
        self._directory = directory
        self._sync_by_database = sync_by_database
        self._note = note
        self._begun: deque[_Begun] = deque()
        self._durable_count = 0
        """How many of `_begun`, from the first, are durable, though their owners do not know it yet."""
        self._syncing_count = 0
        """How many of `_begun` the sync that is under way makes durable."""
        self._is_syncing = False
        self._delivery: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sync: BackgroundSync | None = None
        self._log_number = -1
        self._log: int | None = None
        self._log_anew: int | None = None
        """The same log, opened again. Linux tells each opening of a file once that bytes could not be written: what the
        sync under way may have been told is not told to another one of the same opening."""

    def add(self, sequence: int, manifest_bytes: int, logs: Sequence[int], done: Done) -> None:
        """A write that RocksDB has taken; `logs` are the logs that exist since."""
        self._begun.append(_Begun(sequence, manifest_bytes, done))
        number = max(logs, default=-1)
        if number != self._log_number or self._log is None:
            self._turn_to(number)
            self._make_durable(by_database=True)
            if self._delivery is None:
                self._delivery = asyncio.get_running_loop().call_soon(self._deliver)
        elif not self._is_syncing:
            self._begin_sync()

    def settle(self) -> None:
        """Makes all begun writes durable now; their owners hear of it by the event loop.

        A synced write must not follow one that is not. At a power cut the disk may have the later one only, and a hole
        with a whole write behind it is damage, not a torn end.
        """
        if len(self._begun) > self._durable_count:
            self._make_durable(by_database=False)
            if self._delivery is None:
                self._delivery = asyncio.get_running_loop().call_soon(self._deliver)

    def finish(self) -> None:
        """Makes all begun writes durable now, and tells their owners before it returns."""
        if len(self._begun) > self._durable_count:
            self._make_durable(by_database=False)
        self._deliver()

    def fail(self, failure: StorageFailure) -> None:
        """Tells the owners of all begun writes that are not durable that they failed."""
        begun, self._begun = self._begun, deque()
        durable_count, self._durable_count = self._durable_count, 0
        self._syncing_count = 0
        for index, write in enumerate(begun):
            write.done(None if index < durable_count else failure)

    def close(self) -> None:
        """Closes the files; all begun writes must be finished."""
        assert not self._begun, "begun writes are finished before their store is closed"
        self._is_syncing = False
        if self._sync is not None:
            self._sync.close()
            self._sync = None
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self._turn_to(-1)

    def _turn_to(self, number: int) -> None:
        for descriptor in (self._log, self._log_anew):
            if descriptor is not None:
                os.close(descriptor)
        self._log = self._log_anew = None
        self._log_number = number
        path = self._directory / f"{number:06}.log"
        with suppress(OSError):  # it was removed meanwhile, and the next write is in another one
            self._log_anew = os.open(path, os.O_RDONLY)
            self._log = os.open(path, os.O_RDONLY)

    def _make_durable(self, *, by_database: bool) -> None:
        """Waits until all begun writes are durable; where they are not, their owners are told."""
        try:
            if by_database or self._log_anew is None:
                self._sync_by_database()
            else:
                try:
                    os.fdatasync(self._log_anew)
                except OSError:
                    self._sync_by_database()
        except StorageFailure as failure:
            self.fail(failure)
        else:
            self._are_durable(len(self._begun))

    def _are_durable(self, count: int) -> None:
        if count > self._durable_count:
            newest = self._begun[count - 1]
            self._durable_count = count
            self._note(newest.sequence, newest.manifest_bytes)

    def _deliver(self) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        while self._durable_count:
            self._durable_count -= 1
            self._syncing_count = max(self._syncing_count - 1, 0)
            self._begun.popleft().done(None)

    def _begin_sync(self) -> None:
        loop = asyncio.get_running_loop()
        if self._sync is None or self._loop is not loop:
            self._loop, self._sync = loop, self._new_sync(loop)
        assert self._log is not None
        self._syncing_count = len(self._begun)
        self._is_syncing = True
        self._sync.begin(self._log, self._synced)

    def _synced(self, is_durable: bool) -> None:
        self._is_syncing = False
        count, self._syncing_count = self._syncing_count, 0
        if is_durable:
            self._are_durable(count)
        elif len(self._begun) > self._durable_count:
            self._make_durable(by_database=True)
        self._deliver()
        if len(self._begun) > self._durable_count and not self._is_syncing and self._log is not None:
            self._begin_sync()
