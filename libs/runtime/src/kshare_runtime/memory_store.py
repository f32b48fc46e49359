"""A KeyValueStore in memory, for tests and the simulation, on a MemoryDisk that outlives it.

A MemoryDisk is one node's disk: stores by name, whose content stays when a store is closed or its node crashes. It can
be told to refuse writes (a full disk) or syncs; with `needs_mending`, a store that failed one then refuses all writes
until `mend`, as RocksDB does. A crash undoes the begun writes that are not durable yet; `sync_delay_s` says how long
each takes. With `unsynced` the disk lies: writes are visible at once, but a crash undoes all writes since
the last close or `sync`. A cluster that answers before its writes are durable loses confirmed records on such a disk,
and the simulation must detect it.

`MemoryDisk.open_store` is an Environment's `open_store`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write


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


@dataclass(slots=True)
class _Content:
    """The content of one store on the disk, and the undo log of unsynced writes, newest last."""

    families: dict[str, _Family] = field(default_factory=dict)
    undo: deque[Write] = field(default_factory=deque)
    opened_by: MemoryStore | None = None

    def undo_all(self) -> None:
        """Takes back all writes that are not durable."""
        for family, key, value in reversed(self.undo):
            self.families[family].put(key, value)
        self.undo.clear()


DiskCopy = dict[str, dict[str, _Family]]
"""By store and family."""


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

    def open_store(self, name: str) -> MemoryStore:
        """Opens the store with this name; StorageFailure while it is open."""
        content = self._contents.setdefault(name, _Content())
        if content.opened_by is not None:
            raise StorageFailure(f"cannot open the store {name}: it is already open")
        content.opened_by = MemoryStore(name, self, content)
        return content.opened_by

    def fail_next_writes(self, count: int, message: str = "No space left on device") -> None:
        """The next `count` writes to any store of this disk raise MemoryDiskFailure and change nothing.

        An attempt to mend a store counts as a write.
        """
        self._failures, self._failure_text = count, message

    def fail_next_syncs(self, count: int) -> None:
        """The next `count` syncs of begun writes fail, and take back all writes of their store that wait for one."""
        self._failing_syncs = count

    def crash(self) -> None:
        """Crashes the node: its stores are closed without a sync, and unsynced writes are lost."""
        for content in self._contents.values():
            content.undo_all()
            if content.opened_by is not None:
                content.opened_by.abandon()
                content.opened_by = None

    def copy(self) -> DiskCopy:
        """A copy of the disk's content."""
        return {
            name: {family: found.copy() for family, found in content.families.items()}
            for name, content in self._contents.items()
        }

    def put_back(self, copied: DiskCopy) -> None:
        """Replaces the disk's content by a copy; an empty copy is a new disk. No store may be open."""
        opened = [name for name, content in self._contents.items() if content.opened_by is not None]
        assert not opened, f"the stores {opened} are open"
        self._contents = {
            name: _Content(
                {family: _Family(list(found.keys), dict(found.values)) for family, found in families.items()}
            )
            for name, families in copied.items()
        }

    def sync(self) -> None:
        """Makes all writes so far durable; only an `unsynced` disk needs it."""
        for content in self._contents.values():
            if content.opened_by is not None:
                content.opened_by.is_synced()
            content.undo.clear()

    def take_failure(self, name: str) -> None:
        """Raises the failure that a test asked for, if one is left."""
        if self._failures:
            self._failures -= 1
            self.refused_count += 1
            raise MemoryDiskFailure(f"cannot write the store {name}: {self._failure_text}")

    def sync_fails(self) -> bool:
        """Whether a sync fails because a test asked for it."""
        if not self._failing_syncs:
            return False
        self._failing_syncs -= 1
        self.refused_count += 1
        return True


class MemoryStore:
    """A KeyValueStore of a MemoryDisk; made by `MemoryDisk.open_store`."""

    def __init__(self, name: str, disk: MemoryDisk, content: _Content) -> None:
        self._name = name
        self._disk = disk
        self._content = content
        self._open = True
        self._write_failure: str | None = None
        self._begun: deque[_Begun] = deque()

    def get(self, family: str, key: bytes) -> bytes | None:
        self._check_open()
        found = self._content.families.get(family)
        return None if found is None else found.values.get(key)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        found = self._content.families.get(family)
        return iter(()) if found is None else self._pairs(found, start, end, reverse)

    def write(self, writes: Sequence[Write]) -> None:
        self._check(writes)
        self._all_durable()
        for family, key, value in writes:
            self._put(family, key, value)

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        self._check(writes)
        before = len(self._content.undo)
        for family, key, value in writes:
            self._put(family, key, value, is_durable=False)
        begun = _Begun(done, len(self._content.undo) - before)
        self._begun.append(begun)
        asyncio.get_running_loop().call_later(self._disk.sync_delay_s(), self._synced, begun)

    def finish_writes(self) -> None:
        while self._begun and self._open:
            self._sync_first()

    def _check(self, writes: Sequence[Write]) -> None:
        self._check_open()
        for family in dict.fromkeys([write.family for write in writes]):
            if not family or family == "default":
                raise ValueError(f"{family!r} is not a valid family name: it must not be empty or 'default'")
        self._check_writable()

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
        while self._open and begun in self._begun:
            self._sync_first()

    def _sync_first(self) -> None:
        if self._begun[0].undo_count and self._disk.sync_fails():
            failure = MemoryDiskFailure(f"cannot write the store {self._name}: the sync failed")
            self._content.undo_all()
            if self._disk.needs_mending:
                self._write_failure = str(failure)
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
        self._check_open()
        found = self._content.families.get(family)
        if found is None or end <= start:
            return
        self._check_writable()
        self._all_durable()
        first, last = found.range(start, end)
        for key in found.keys[first:last]:
            self._put(family, key, None)

    @property
    def write_failure(self) -> str | None:
        """See MendableStore."""
        return self._write_failure

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
        return True

    def _check_writable(self) -> None:
        if self._write_failure is not None:
            raise MemoryDiskFailure(
                f"cannot write the store {self._name}: an earlier write failed ({self._write_failure})"
            )
        try:
            self._disk.take_failure(self._name)
        except StorageFailure as failure:
            if self._disk.needs_mending:
                self._write_failure = str(failure)
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

    def abandon(self) -> None:
        """Called by the disk when the node crashed: nothing may be read or written through this object any more."""
        self._open = False

    def _put(self, family: str, key: bytes, value: bytes | None, *, is_durable: bool = True) -> None:
        found = self._content.families.setdefault(family, _Family())
        if self._disk.unsynced or not is_durable:
            self._content.undo.append(Write(family, key, found.values.get(key)))
        found.put(key, value)

    def _pairs(self, found: _Family, start: bytes, end: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        first, last = found.range(start, end)
        for index in range(last - 1, first - 1, -1) if reverse else range(first, last):
            if not self._open:
                raise StorageFailure("the store was closed while it was scanned")
            key = found.keys[index]
            yield key, found.values[key]

    def _check_open(self) -> None:
        if not self._open:
            raise StorageFailure(f"the store {self._name} is closed")
