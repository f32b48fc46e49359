"""A KeyValueStore whose rows carry checksums of their own, verified at every read of a row.

RocksDB's checksums cover blocks of files. A bit that flips in its block cache, in its memtables or on the way to the
caller passes it. An offset, an epoch or a catalog row with a wrong bit looks as good as any other, and a role would act
on it: lose records, write behind the end of a log, or serve another start offset. A stored value is

    mark (4 bytes)   crc32c of key and value   value

Rows from before there were checksums have no mark and are returned as they are. A mark with up to `MARK_BITS` wrong
bits is a damaged one; no row of older versions begins like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct

from crc32c import crc32c

from kshare_core.errors import StorageFailure
from kshare_runtime.ports import KeyRange, KeyValueStore, Write

MARK = 0xD3B5EDF6
"""Older rows begin with a small number, -1, text, or a field number of a proto: all differ in four bits and more."""
MARK_BITS = 3
_HEAD = Struct(">II")


class CorruptRow(StorageFailure):
    """A row with a wrong checksum; the text names its family and key."""


class ChecksummedRows:
    """A KeyValueStore over another one. Reads raise CorruptRow, a StorageFailure, where a checksum is wrong.

    `plain_families` are passed as they are: their values have checksums already.
    """

    def __init__(self, store: KeyValueStore, *, plain_families: Sequence[str] = ()) -> None:
        self._store = store
        self._plain_families = frozenset(plain_families)

    def get(self, family: str, key: bytes) -> bytes | None:
        stored = self._store.get(family, key)
        return stored if stored is None or family in self._plain_families else unsealed(family, key, stored)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._store.scan(family, start, end, reverse=reverse)
        if family in self._plain_families:
            return rows
        return ((key, unsealed(family, key, stored)) for key, stored in rows)

    def write(self, writes: Sequence[Write]) -> None:
        self._store.write(self._all_sealed(writes))

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        self._store.begin_write(self._all_sealed(writes), done)

    def finish_writes(self) -> None:
        self._store.finish_writes()

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self._store.delete_range(family, start, end)

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._store.delete_ranges(ranges)

    def families(self) -> list[str]:
        return self._store.families()

    def close(self) -> None:
        self._store.close()

    def _all_sealed(self, writes: Sequence[Write]) -> list[Write]:
        plain = self._plain_families
        return [
            write
            if write.value is None or write.family in plain
            else Write(write.family, write.key, sealed(write.key, write.value))
            for write in writes
        ]


def sealed(key: bytes, value: bytes) -> bytes:
    """The stored form of a row's value."""
    return _HEAD.pack(MARK, crc32c(value, crc32c(key))) + value


def unsealed(family: str, key: bytes, stored: bytes) -> bytes:
    """A row's value from its stored form; CorruptRow where the checksum is wrong."""
    if len(stored) < _HEAD.size:
        return stored
    mark, checksum = _HEAD.unpack_from(stored)
    value = stored[_HEAD.size :]
    if mark == MARK:
        if checksum == crc32c(value, crc32c(key)):
            return value
    elif (mark ^ MARK).bit_count() > MARK_BITS:
        return stored
    raise CorruptRow(f"the row {key.hex()} of {family} has a wrong checksum")
