"""A KeyValueStore in memory, for tests and the simulation, on a MemoryDisk that outlives it.

A MemoryDisk is one node's disk: stores by name, whose content stays when a store is closed or its node crashes. It can
be told to refuse writes (a full disk); with `needs_mending`, a store that failed a write then refuses all others until
`mend`, as RocksDB does. With `unsynced` the disk lies: writes are visible at once, but a crash undoes all writes since
the last close or `sync`. A cluster that answers before its writes are durable loses confirmed records on such a disk,
and the simulation must detect it.

`MemoryDisk.open_store` is an Environment's `open_store`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
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
class _Content:
    """The content of one store on the disk, and the undo log of unsynced writes, newest last."""

    families: dict[str, _Family] = field(default_factory=dict)
    undo: list[Write] = field(default_factory=list)
    opened_by: MemoryStore | None = None


DiskCopy = dict[str, dict[str, _Family]]
"""By store and family."""


class MemoryDisk:
    """The disk of one node; the module's docstring has its failure modes."""

    def __init__(self, *, unsynced: bool = False, needs_mending: bool = False) -> None:
        self.unsynced = unsynced
        self.needs_mending = needs_mending
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

    def crash(self) -> None:
        """Crashes the node: its stores are closed without a sync, and unsynced writes are lost."""
        for content in self._contents.values():
            for family, key, value in reversed(content.undo):
                content.families[family].put(key, value)
            content.undo.clear()
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
            content.undo.clear()

    def take_failure(self, name: str) -> None:
        """Raises the failure that a test asked for, if one is left."""
        if self._failures:
            self._failures -= 1
            self.refused_count += 1
            raise MemoryDiskFailure(f"cannot write the store {name}: {self._failure_text}")


class MemoryStore:
    """A KeyValueStore of a MemoryDisk; made by `MemoryDisk.open_store`."""

    def __init__(self, name: str, disk: MemoryDisk, content: _Content) -> None:
        self._name = name
        self._disk = disk
        self._content = content
        self._open = True
        self._write_failure: str | None = None

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
        self._check_open()
        for family in dict.fromkeys([write.family for write in writes]):
            if not family or family == "default":
                raise ValueError(f"{family!r} is not a valid family name: it must not be empty or 'default'")
        self._check_writable()
        for family, key, value in writes:
            self._put(family, key, value)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self._check_open()
        found = self._content.families.get(family)
        if found is None or end <= start:
            return
        self._check_writable()
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
            self._open = False
            self._content.undo.clear()
            self._content.opened_by = None

    def abandon(self) -> None:
        """Called by the disk when the node crashed: nothing may be read or written through this object any more."""
        self._open = False

    def _put(self, family: str, key: bytes, value: bytes | None) -> None:
        found = self._content.families.setdefault(family, _Family())
        if self._disk.unsynced:
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
