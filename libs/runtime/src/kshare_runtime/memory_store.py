"""A KeyValueStore in memory, for tests and the simulation, on a MemoryDisk that outlives it.

A MemoryDisk is one node's disk: stores by name, whose content stays when a store is closed or its node crashes. It can
be told to refuse writes (a full disk) or syncs; with `needs_mending`, a store that failed one then refuses all writes
until `mend`, as RocksDB does. A crash undoes the begun writes that are not durable yet; `sync_delay_s` says how long
each takes. With `unsynced` the disk lies: writes are visible at once, but a crash undoes all writes since
the last close or `sync`. A cluster that answers before its writes are durable loses confirmed records on such a disk,
and the simulation must detect it.

`MemoryDisk.events` (`DiskEvents`) is told of each read and write, and decides what is left of writes without a
confirmation after a crash. What it may do is what can be seen above RocksDB on a failing disk. The rest RocksDB and
`store_files` turn into a read that fails, or a store that does not open (tests/unit/runtime/test_disk_promises.py):

- A write is one record of the write-ahead log with a checksum: a torn or partial one is dropped as a whole at open.
- The log is written in order, and what is left after a power cut is a prefix of the writes without a confirmation. A
  lost page before other writes is damage, and the store does not open.
- A flipped bit in a table, a table's block at the place of another, and a block that was never written fail the
  checksum of the block, which has the place of the block in it. The read fails.
- Bits that flip after RocksDB has checked a block, in its cache or on their way to the caller, reach the caller.

`MemoryDisk.open_store` is an Environment's `open_store`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kshare_core.errors import StorageFailure
from kshare_runtime.large_values.memory import MemoryFolder, MemorySync
from kshare_runtime.ports import KeyRange, Write


class MemoryDiskFailure(StorageFailure):
    """A write that `MemoryDisk.fail_next_writes` refuses, or a later one to a store that was not mended."""


@dataclass(slots=True)
class _Family:
    """Sorted keys, and their values."""

    keys: list[bytes] = field(default_factory=list)
    values: dict[bytes, bytes] = field(default_factory=dict)

    def copy(self) -> _Family:
        return _Family(list(self.keys), dict(self.values))

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            if key not in self.values:
                self.keys.insert(bisect_left(self.keys, key), key)
            self.values[key] = value
        elif key in self.values:
            del self.values[key]
            del self.keys[bisect_left(self.keys, key)]

    def range(self, start: bytes, end: bytes | None) -> tuple[int, int]:
        """Indexes into `keys` of start <= key < end."""
        last = len(self.keys) if end is None else bisect_left(self.keys, end)
        first = bisect_left(self.keys, start)
        return first, max(first, last)


@dataclass(slots=True)
class _Begun:
    """A begun write that is not durable; `undo_count` entries at the front of the undo log are its own."""

    done: Callable[[StorageFailure | None], None]
    undo_count: int
    writes: Sequence[Write]


@dataclass(slots=True)
class _Content:
    """The content of one store on the disk, and the undo log of unsynced writes, newest last."""

    families: dict[str, _Family] = field(default_factory=dict)
    undo: deque[Write] = field(default_factory=deque)
    opened_by: MemoryStore | None = None

    def undo_all(self) -> None:
        """Takes back all writes that are not durable."""
        self.undo_newest(len(self.undo))

    def undo_newest(self, count: int) -> None:
        """Takes back the newest `count` of the writes in the undo log, which then has none."""
        for _ in range(count):
            family, key, value = self.undo.pop()
            self.families[family].put(key, value)
        self.undo.clear()


@dataclass(slots=True)
class DiskCopy:
    """What a disk has; nothing is that of a new disk."""

    stores: dict[str, dict[str, _Family]] = field(default_factory=dict)
    """By store and family."""
    folders: dict[str, MemoryFolder] = field(default_factory=dict)
    """By store."""


class DiskEvents:
    """What a disk tells of its reads and writes, and asks where more than one outcome is possible.

    This one lets everything pass, and keeps nothing without a confirmation at a crash.
    """

    def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
        """The bytes that a read of a row returns; MemoryDiskFailure where it fails."""
        return value

    def write_begins(self) -> None:
        """A write is about to take effect."""

    def process_waits(self) -> None:
        """The event loop stands still until the disk has synced."""

    def write_applied(self) -> None:
        """A write has taken effect, and its caller does not know it yet."""

    def begun_writes_kept(self, count: int) -> int:
        """How many of the begun writes that were not durable, from the first, a crash leaves."""
        return 0

    def failed_writes_found(self, count: int) -> int:
        """How many of the writes that were answered as failed, from the first, are found after a crash."""
        return 0

    def bytes_read(self, data: bytes, files: Callable[[], Sequence[bytes]]) -> bytes:
        """What a read of a value file returns instead of `data`: `files` gives the bytes of all files of its folder."""
        return data

    def bytes_kept(self, data: bytes, position: int) -> bytes:
        """What a crash leaves of the bytes at the end of a file, from `position` on, that were not synced."""
        return b""

    def removed_files_found(self, count: int) -> int:
        """How many files are found after a crash that were removed before, in names that were not synced."""
        return 0


class MemoryDisk:
    """The disk of one node; the module's docstring has its failure modes."""

    def __init__(
        self,
        *,
        unsynced: bool = False,
        needs_mending: bool = False,
        sync_delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.unsynced = unsynced
        self.needs_mending = needs_mending
        self.sync_delay_s = sync_delay_s
        self._failing_syncs = 0
        self._contents: dict[str, _Content] = {}
        self._failures = 0
        self._failure_text = ""
        self.refused_count = 0
        """The number of refused writes."""
        self.events = DiskEvents()
        self.is_full = False
        """Whether writes are refused; begun writes have their place already."""
        self.holds_syncs = False
        """Whether begun writes stay as they are until `release_syncs`."""
        self._folders: dict[str, MemoryFolder] = {}
        self._syncs: list[MemorySync] = []

    def open_store(self, name: str) -> MemoryStore:
        """Opens the store with this name; StorageFailure while it is open."""
        content = self._contents.setdefault(name, _Content())
        if content.opened_by is not None:
            raise StorageFailure(f"cannot open the store {name}: it is already open")
        content.opened_by = MemoryStore(name, self, content)
        return content.opened_by

    def open_folder(self, name: str) -> MemoryFolder:
        """The folder of value files beside the store with this name."""
        return self._folders.setdefault(name, MemoryFolder(self))

    def new_sync(self, name: str, loop: asyncio.AbstractEventLoop) -> MemorySync:
        """Syncs the files of a folder; see `kshare_runtime.background_sync`."""
        self._syncs.append(MemorySync(loop, self, self._folders[name]))
        return self._syncs[-1]

    def fail_next_writes(self, count: int, message: str = "No space left on device") -> None:
        """The next `count` writes to any store of this disk raise MemoryDiskFailure and change nothing.

        An attempt to mend a store counts as a write.
        """
        self._failures, self._failure_text = count, message

    def fail_next_syncs(self, count: int) -> None:
        """The next `count` syncs of begun writes fail, and take back all writes of their store that wait for one."""
        self._failing_syncs = count

    @property
    def waiting_count(self) -> int:
        """The number of begun writes that are not durable, or whose callers do not know it."""
        stores = [content.opened_by for content in self._contents.values() if content.opened_by is not None]
        return sum(store.begun_count for store in stores) + sum(sync.is_under_way for sync in self._syncs)

    def crash(self) -> None:
        """Crashes the node: its stores are closed without a sync, and unsynced writes are lost.

        `events` says how many of the begun writes are left, and how many that were answered as failed.
        """
        for content in self._contents.values():
            store = content.opened_by
            if store is None or self.unsynced:
                content.undo_all()
            else:
                content.undo_newest(len(content.undo) - store.undo_count_kept())
            if store is not None:
                store.lose_process()
                content.opened_by = None
        self._syncs.clear()
        for folder in self._folders.values():
            folder.crash()

    def release_syncs(self) -> None:
        """Ends `holds_syncs`: begun writes become durable, or fail if a test asked for it."""
        self.holds_syncs = False
        for sync in list(self._syncs):
            sync.release()
        for content in self._contents.values():
            if content.opened_by is not None:
                content.opened_by.finish_writes()

    def copy(self) -> DiskCopy:
        """A copy of the disk's content."""
        return DiskCopy(
            {
                name: {family: found.copy() for family, found in content.families.items()}
                for name, content in self._contents.items()
            },
            {name: folder.copy_for(self) for name, folder in self._folders.items()},
        )

    def put_back(self, copied: DiskCopy) -> None:
        """Replaces the disk's content by a copy of it. No store may be open."""
        opened = [name for name, content in self._contents.items() if content.opened_by is not None]
        assert not opened, f"the stores {opened} are open"
        self._contents = {
            name: _Content(
                {family: _Family(list(found.keys), dict(found.values)) for family, found in families.items()}
            )
            for name, families in copied.stores.items()
        }
        self._folders = {name: folder.copy_for(self) for name, folder in copied.folders.items()}

    def sync(self) -> None:
        """Makes all writes so far durable; only an `unsynced` disk needs it."""
        for content in self._contents.values():
            if content.opened_by is not None:
                content.opened_by.is_synced()
            content.undo.clear()
        for folder in self._folders.values():
            folder.sync()

    def take_failure(self, name: str) -> None:
        """Raises the failure that a test asked for, if one is left."""
        if self.is_full:
            self.refused_count += 1
            raise MemoryDiskFailure(f"cannot write the store {name}: No space left on device")
        if self._failures:
            self._failures -= 1
            self.refused_count += 1
            raise MemoryDiskFailure(f"cannot write the store {name}: {self._failure_text}")

    def refuses_write(self) -> bool:
        """Whether a write to a file fails, as `take_failure` does for one to a store."""
        try:
            self.take_failure("values")
        except StorageFailure:
            return True
        return False

    def sync_fails(self) -> bool:
        """Whether a sync fails because a test asked for it."""
        if not self._failing_syncs:
            return False
        self._failing_syncs -= 1
        self.refused_count += 1
        return True

    # What value files ask

    def write_begins(self) -> None:
        self.events.write_begins()

    def write_applied(self) -> None:
        self.events.write_applied()

    def process_waits(self) -> None:
        self.events.process_waits()

    def value_read(self, place: str, value: bytes) -> bytes:
        return self.events.value_read("values", place.encode(), value)

    def bytes_read(self, data: bytes, files: Callable[[], Sequence[bytes]]) -> bytes:
        return self.events.bytes_read(data, files)

    def bytes_kept(self, data: bytes, position: int) -> bytes:
        return self.events.bytes_kept(data, position) if data and not self.unsynced else b""

    def removed_files_found(self, count: int) -> int:
        return self.events.removed_files_found(count)


class MemoryStore:
    """A KeyValueStore of a MemoryDisk; made by `MemoryDisk.open_store`."""

    def __init__(self, name: str, disk: MemoryDisk, content: _Content) -> None:
        self._name = name
        self._disk = disk
        self._content = content
        self._open = True
        self._write_failure: str | None = None
        self._begun: deque[_Begun] = deque()
        self._failed: list[Sequence[Write]] = []
        """Writes that were answered as failed, until the store is mended: a crash may leave them in the log."""

    def get(self, family: str, key: bytes) -> bytes | None:
        self._check_open()
        found = self._content.families.get(family)
        value = None if found is None else found.values.get(key)
        return None if value is None else self._disk.events.value_read(family, key, value)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        found = self._content.families.get(family)
        return iter(()) if found is None else self._pairs(family, found, start, end, reverse)

    def write(self, writes: Sequence[Write]) -> None:
        self._check(writes)
        self._disk.events.write_begins()
        self._disk.events.process_waits()
        self._all_durable()
        for family, key, value in writes:
            self._put(family, key, value)
        self._disk.events.write_applied()

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        self._check(writes)
        self._disk.events.write_begins()
        before = len(self._content.undo)
        for family, key, value in writes:
            self._put(family, key, value, is_durable=False)
        begun = _Begun(done, len(self._content.undo) - before, writes)
        self._begun.append(begun)
        self._disk.events.write_applied()
        asyncio.get_running_loop().call_later(self._disk.sync_delay_s(), self._synced, begun)

    def finish_writes(self) -> None:
        if self._begun and self._open:
            self._disk.events.process_waits()
        while self._begun and self._open:
            self._sync_first()

    @property
    def begun_count(self) -> int:
        """See `MemoryDisk.waiting_count`."""
        return len(self._begun)

    def _check(self, writes: Sequence[Write]) -> None:
        self._check_open()
        for family in dict.fromkeys([write.family for write in writes]):
            if not family or family == "default":
                raise ValueError(f"{family!r} is not a valid family name: it must not be empty or 'default'")
        self._check_writable(writes)

    def _all_durable(self) -> None:
        """A sync makes everything before it durable, also what was only begun."""
        if not self._disk.unsynced:
            self.is_synced()

    def is_synced(self) -> None:
        """Notes that everything is durable."""
        self._content.undo.clear()
        for begun in self._begun:
            begun.undo_count = 0

    def _synced(self, begun: _Begun) -> None:
        """A sync has ended, and with it the writes that were begun before this one."""
        while self._open and begun in self._begun and not self._disk.holds_syncs:
            self._sync_first()

    def _sync_first(self) -> None:
        if self._begun[0].undo_count and self._disk.sync_fails():
            failure = MemoryDiskFailure(f"cannot write the store {self._name}: the sync failed")
            self._content.undo_all()
            if self._disk.needs_mending:
                self._write_failure = str(failure)
                # They are before a write in the log that was refused meanwhile.
                self._failed[:0] = [failed.writes for failed in self._begun if failed.undo_count]
            begun, self._begun = self._begun, deque()
            for failed in begun:
                failed.done(failure if failed.undo_count else None)
            return
        first = self._begun.popleft()
        if not self._disk.unsynced:
            for _ in range(first.undo_count):
                self._content.undo.popleft()
        first.done(None)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.delete_ranges([KeyRange(family, start, end)])

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._check_open()
        families = self._content.families
        ranges = [removed for removed in ranges if removed.family in families and removed.start < removed.end]
        if not ranges:
            return
        writes: list[Write] = []
        for family, start, end in ranges:
            first, last = families[family].range(start, end)
            writes += [Write(family, key, None) for key in families[family].keys[first:last]]
        self._check_writable(writes)
        self._disk.events.write_begins()
        self._disk.events.process_waits()
        self._all_durable()
        for write in writes:
            self._put(*write)
        self._disk.events.write_applied()

    @property
    def write_failure(self) -> str | None:
        """See MendableStore."""
        return self._write_failure

    def takes_writes(self) -> bool:
        """Whether the disk has room."""
        return not self._disk.is_full

    def mend(self) -> bool:
        """See MendableStore."""
        if not self._open:
            return False
        self.finish_writes()
        try:
            self._disk.take_failure(self._name)
        except StorageFailure:
            return False
        self._write_failure = None
        self._failed.clear()
        return True

    def _check_writable(self, writes: Sequence[Write]) -> None:
        if self._write_failure is not None:
            raise MemoryDiskFailure(
                f"cannot write the store {self._name}: an earlier write failed ({self._write_failure})"
            )
        try:
            self._disk.take_failure(self._name)
        except StorageFailure as failure:
            if self._disk.needs_mending:
                self._write_failure = str(failure)
                self._failed.append(writes)
            raise

    def families(self) -> list[str]:
        self._check_open()
        return sorted(self._content.families)

    def close(self) -> None:
        """Closes the store; its writes are durable then."""
        if self._open:
            self.finish_writes()
            self._open = False
            self._content.undo.clear()
            self._content.opened_by = None

    def lose_process(self) -> None:
        """Called by the disk when the node crashed: nothing may be read or written through this object any more."""
        found = self._disk.events.failed_writes_found(len(self._failed)) if self._open and self._failed else 0
        for writes in self._failed[:found]:
            for family, key, value in writes:
                self._put(family, key, value)
        self._open = False

    def undo_count_kept(self) -> int:
        """How many entries of the undo log belong to begun writes that the crash leaves.

        Where it loses some of them, it loses all failed writes too, because these are behind them in the log.
        """
        waiting = [begun.undo_count for begun in self._begun if begun.undo_count]
        kept = self._disk.events.begun_writes_kept(len(waiting)) if waiting else 0
        if kept < len(waiting):
            self._failed.clear()
        return sum(waiting[:kept])

    def _put(self, family: str, key: bytes, value: bytes | None, *, is_durable: bool = True) -> None:
        found = self._content.families.setdefault(family, _Family())
        if self._disk.unsynced or not is_durable:
            self._content.undo.append(Write(family, key, found.values.get(key)))
        found.put(key, value)

    def _pairs(
        self, family: str, found: _Family, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        first, last = found.range(start, end)
        for index in range(last - 1, first - 1, -1) if reverse else range(first, last):
            if not self._open:
                raise StorageFailure("the store was closed while it was scanned")
            key = found.keys[index]
            yield key, self._disk.events.value_read(family, key, found.values[key])

    def _check_open(self) -> None:
        if not self._open:
            raise StorageFailure(f"the store {self._name} is closed")
