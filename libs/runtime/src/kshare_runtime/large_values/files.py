"""Files of large values beside a store: each value is written once, and the store's row says where it lies.

RocksDB writes a value to its write-ahead log, to a table, and again whenever tables are merged. Here its bytes are
appended to a file once. All keys with the same first `prefix_bytes` bytes share files, as the batches of one partition
do. A file holds values of ascending keys, and later files hold later keys. So a file whose successor begins at or below
the first key that is left holds nothing any more, and is removed as a whole. So is the last file once its last key is
below the first key that is left: the rows behind it may all be small ones. A name has no last key. For a file of an
earlier opening it is at most the last key that had a row when the file was found.

    <prefix>/<number>-<first key without the prefix>, prefix and key in hexadecimal

A file is written by one opening of the store only. What a crash leaves at its end belongs to no row; nothing reads it,
and nothing is ever written behind it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from kshare_core.errors import StorageFailure
from kshare_runtime.large_values.folder import OpenedFile, ValueFolder

FILE_BYTES = 64 * 1024 * 1024
"""A file takes no more values from this size on. The space of removed values is given back in such pieces."""
WRITTEN_FILES_LIMIT = 128
"""Files that are open for writing; the one used longest ago is ended first."""

_POINTER = struct.Struct(">BBHQQII")
_MARK, _VERSION = 0xFF, 1
POINTER_BYTES = _POINTER.size


class DamagedValue(StorageFailure):
    """A value whose file is missing, shorter or damaged where it lies."""


class Pointer(NamedTuple):
    """Where a value lies, and its CRC-32C."""

    number: int
    position: int
    length: int
    crc: int

    def encoded(self) -> bytes:
        return _POINTER.pack(_MARK, _VERSION, 0, self.number, self.position, self.length, self.crc)


def pointer_of(row: bytes) -> Pointer | None:
    """The pointer that a row holds; None where the row is the value itself."""
    if len(row) != POINTER_BYTES or row[0] != _MARK or row[1] != _VERSION:
        return None
    _, _, _, *place = _POINTER.unpack(row)
    return Pointer(*place)


class ValueFile:
    """A file that takes values. It is closed once it is ended and no sync holds it."""

    __slots__ = ("_holders", "_is_ended", "length", "number", "opened", "prefix")

    def __init__(self, prefix: bytes, number: int, opened: OpenedFile) -> None:
        self.prefix = prefix
        self.number = number
        self.opened = opened
        self.length = 0
        """The end of the last value."""
        self._holders = 0
        self._is_ended = False

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        self._close_unused()

    def end(self) -> None:
        """Nothing more is written to it."""
        self._is_ended = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self._is_ended and self._holders == 0:
            self.opened.close()


@dataclass(slots=True)
class _OfPrefix:
    """The files of one prefix."""

    first_keys: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    """By number, in ascending order of the numbers. A first key is above all keys of the files before it: those after
    it may begin lower only where the end of the keys was cut, and the folder still has a file that was removed then."""
    last_keys: dict[int, bytes] = field(default_factory=dict)
    """By number: no row of a later key has its value in that file."""
    last_key: bytes = b""
    """No value of a key up to this one is appended."""


class ValueFiles:
    """The files of one folder, which it owns. StorageFailure where the disk fails."""

    def __init__(self, folder: ValueFolder, prefix_bytes: int, *, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._prefix_bytes = prefix_bytes
        self._file_bytes = file_bytes
        self._prefixes: dict[bytes, _OfPrefix] = {}
        self._written: OrderedDict[bytes, ValueFile] = OrderedDict()
        self._number = 0
        self._size_bytes = 0
        try:
            self._find_files()
        except (OSError, ValueError) as error:
            raise StorageFailure(f"cannot open the value files {folder.name}: {error}") from error

    def _find_files(self) -> None:
        for prefix, sizes in self._folder.files().items():
            self._size_bytes += sum(sizes.values())
            names = sorted((name.partition("-") for name in sizes), key=lambda parts: int(parts[0]))
            first_keys = OrderedDict((int(number), prefix + bytes.fromhex(rest)) for number, _, rest in names)
            self._prefixes[prefix] = _OfPrefix(first_keys)
            self._number = max([self._number, *first_keys])

    def prefixes(self) -> list[bytes]:
        """The prefixes that have files."""
        return list(self._prefixes)

    def prefixes_between(self, start: bytes, end: bytes) -> list[bytes]:
        """Those that have files and may have keys with start <= key < end."""
        first = start[: self._prefix_bytes]
        return [prefix for prefix in self._prefixes if first <= prefix < end]

    def prefix_of(self, key: bytes) -> bytes:
        return key[: self._prefix_bytes]

    def takes(self, prefix: bytes, key: bytes) -> bool:
        """Whether a value of this key can be appended: only keys after all those before can."""
        found = self._prefixes.get(prefix)
        return found is None or key > found.last_key

    def append(self, prefix: bytes, rows: Sequence[tuple[bytes, bytes]]) -> tuple[list[Pointer], ValueFile]:
        """Appends the values of rows, whose keys ascend; the pointers, and the file, which is not synced yet."""
        try:
            written = self._file_for(prefix, rows[0][0])
            try:
                written.opened.write([value for _, value in rows], written.length)
            except OSError:
                written.opened.truncate(written.length)
                raise
        except OSError as error:
            raise StorageFailure(f"cannot write the value files {self._folder.name}: {error}") from error
        pointers = []
        for _, value in rows:
            pointers.append(Pointer(written.number, written.length, len(value), crc32c(value)))
            written.length += len(value)
            self._size_bytes += len(value)
        found = self._prefixes[prefix]
        found.last_key = found.last_keys[written.number] = rows[-1][0]
        return pointers, written

    def _file_for(self, prefix: bytes, key: bytes) -> ValueFile:
        written = self._written.get(prefix)
        if written is not None and written.length < self._file_bytes:
            self._written.move_to_end(prefix)
            return written
        self._end(prefix)
        while len(self._written) >= WRITTEN_FILES_LIMIT:
            self._end(next(iter(self._written)))
        self._number += 1
        number = self._number
        opened = self._folder.create(prefix, self._name(number, key))
        written = self._written[prefix] = ValueFile(prefix, number, opened)
        self._prefixes.setdefault(prefix, _OfPrefix()).first_keys[number] = key
        return written

    def _name(self, number: int, first_key: bytes) -> str:
        return f"{number:010}-{first_key[self._prefix_bytes :].hex()}"

    def _end(self, prefix: bytes) -> None:
        written = self._written.pop(prefix, None)
        if written is not None:
            written.end()

    def end_file(self, file: ValueFile) -> None:
        """Nothing more is written to a file, as its bytes may not have reached the disk."""
        if self._written.get(file.prefix) is file:
            self._end(file.prefix)

    def end_all(self) -> None:
        """Nothing more is written to the files that there are."""
        for prefix in list(self._written):
            self._end(prefix)

    def note_last(self, prefix: bytes, last_key: bytes) -> None:
        """The last key that has a row: values of later keys can be appended again."""
        self._end(prefix)
        self._prefixes[prefix].last_key = last_key

    def read(self, prefix: bytes, pointer: Pointer) -> bytes:
        """The value at a pointer; DamagedValue, or StorageFailure where the disk fails."""
        found = self._prefixes.get(prefix)
        first_key = None if found is None else found.first_keys.get(pointer.number)
        if first_key is None:
            raise DamagedValue(f"{self._place(prefix, pointer)} is missing")
        try:
            data = self._folder.read(prefix, self._name(pointer.number, first_key), pointer.position, pointer.length)
        except OSError as error:
            raise StorageFailure(f"cannot read {self._place(prefix, pointer)}: {error}") from error
        end = pointer.position + pointer.length
        if len(data) < pointer.length:
            raise DamagedValue(f"{self._place(prefix, pointer)} ends before byte {end}, which a row needs")
        if crc32c(data) != pointer.crc:
            raise DamagedValue(f"{self._place(prefix, pointer)} is damaged between byte {pointer.position} and {end}")
        return data

    def _place(self, prefix: bytes, pointer: Pointer) -> str:
        return f"value file {pointer.number} of {self._folder.name}/{prefix.hex()}"

    def keep(self, prefix: bytes, first_key: bytes | None, last_key: bytes | None) -> None:
        """Removes the files that hold no value of the rows that are left, from the first to the last key.

        None: no row of the prefix is left. A file that cannot be removed stays for the next call.
        """
        found = self._prefixes[prefix]
        numbers = list(found.first_keys)
        written = self._written.get(prefix)
        for index, number in enumerate(numbers):
            following = found.first_keys[numbers[index + 1]] if index + 1 < len(numbers) else None
            if first_key is not None and last_key is not None:
                bound = found.last_keys[number] = min(found.last_keys.get(number, last_key), last_key)
                is_below = bound < first_key or (following is not None and following <= first_key)
                is_above = found.first_keys[number] > last_key
                is_gone = is_below or is_above
            else:
                is_gone = True
            if is_gone:
                if written is not None and written.number == number:
                    self._end(prefix)
                self._remove(prefix, number)
        if not found.first_keys:
            del self._prefixes[prefix]
            with suppress(OSError):
                self._folder.remove_prefix(prefix)

    def _remove(self, prefix: bytes, number: int) -> None:
        found = self._prefixes[prefix]
        try:
            self._size_bytes -= self._folder.remove(prefix, self._name(number, found.first_keys[number]))
        except OSError:
            return
        del found.first_keys[number]
        found.last_keys.pop(number, None)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return self._size_bytes

    def close(self) -> None:
        self.end_all()
        self._folder.close()
