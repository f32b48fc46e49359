"""A store whose rows carry their own checksums, verified at every read of a row.

RocksDB's checksums cover blocks of files. This one is computed where a row is made and checked where it is used. So it
also covers the path between: memory, copies to other nodes, tools that write into a store. A stored value is

    version (1)   crc32c of key and value   value
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Protocol, runtime_checkable

from crc32c import crc32c

from kshare_core.errors import StorageFailure
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import FiguredStore, KeyRange, KeyValueStore, StoreFigures, Write

ROW_VERSION = 1
_HEAD = Struct(">BI")


@runtime_checkable
class MaintainedStore(Protocol):
    """Methods of a store on a disk beyond KeyValueStore; see RocksStore. A store in memory has none of them."""

    @property
    def path(self) -> Path: ...

    def damaged_families(self) -> Mapping[str, str]: ...

    def drop_family(self, family: str) -> None: ...

    def checkpoint(self, directory: Path) -> None: ...

    def sync_confirmed(self) -> None: ...


class ChecksummedStore:
    """A KeyValueStore over another one. Reads raise CorruptRow, a StorageFailure, if a checksum is wrong."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._maintained = store if isinstance(store, MaintainedStore) else None

    @property
    def stored(self) -> KeyValueStore:
        """The store below."""
        return self._store

    @property
    def maintained(self) -> MaintainedStore | None:
        """The store below if it is on a disk."""
        return self._maintained

    @property
    def has_damage(self) -> bool:
        """Whether any family is known to be damaged."""
        return self._maintained is not None and bool(self._maintained.damaged_families())

    def damage(self, family: str) -> str | None:
        """Why the family cannot be read; None if no damage is known."""
        return None if self._maintained is None else self._maintained.damaged_families().get(family)

    def get(self, family: str, key: bytes) -> bytes | None:
        stored = self._store.get(family, key)
        return None if stored is None else unsealed(family, key, stored)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in self._store.scan(family, start, end, reverse=reverse):
            yield key, unsealed(family, key, stored)

    def scan_stored(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows in their stored form, for scans that continue after a corrupt row; see `unsealed`."""
        return self._store.scan(family, start, end, reverse=reverse)

    def write(self, writes: Sequence[Write]) -> None:
        self._store.write(_all_sealed(writes))

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        self._store.begin_write(_all_sealed(writes), done)

    def finish_writes(self) -> None:
        self._store.finish_writes()

    def write_stored(self, writes: Sequence[Write]) -> None:
        """Writes rows in their stored form, as another store's `scan_stored` gave them."""
        self._store.write(writes)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self._store.delete_range(family, start, end)

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._store.delete_ranges(ranges)

    def families(self) -> list[str]:
        return self._store.families()

    def figures(self) -> StoreFigures | None:
        """See FiguredStore; None if the store below has none."""
        return self._store.figures() if isinstance(self._store, FiguredStore) else None

    def close(self) -> None:
        self._store.close()


def _all_sealed(writes: Sequence[Write]) -> list[Write]:
    stored: list[Write] = []
    for write in writes:
        family, key, value = write
        if value is None:
            stored.append(write)
        else:  # `sealed`, without a call for each row
            head = _HEAD.pack(ROW_VERSION, crc32c(value, crc32c(key)))
            stored.append(Write(family, key, head + value))
    return stored


def sealed(key: bytes, value: bytes) -> bytes:
    """The stored form of a row's value."""
    return _HEAD.pack(ROW_VERSION, crc32c(value, crc32c(key))) + value


def unsealed(family: str, key: bytes, stored: bytes) -> bytes:
    """A row's value from its stored form; CorruptRow if the checksum is wrong."""
    if len(stored) < _HEAD.size:
        raise CorruptRow(f"the row {key.hex()} of {family} has {len(stored)} bytes, fewer than its checksum")
    version, checksum = _HEAD.unpack_from(stored)
    value = stored[_HEAD.size :]
    if version != ROW_VERSION:
        raise CorruptRow(f"the row {key.hex()} of {family} has version {version}; known is {ROW_VERSION}")
    if checksum != crc32c(value, crc32c(key)):
        raise CorruptRow(f"the row {key.hex()} of {family} has a wrong checksum")
    return value
