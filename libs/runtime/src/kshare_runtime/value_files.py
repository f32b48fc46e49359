"""Files of large values beside a store: each value is written once, and the store's row says where it lies.

RocksDB writes a value to its write-ahead log, to a table, and again whenever tables are merged. Here its bytes are
appended to a file once. All keys with the same first `prefix_bytes` bytes share files, as the batches of one partition
do. A file holds values of ascending keys, and later files hold later keys. So a file whose successor begins at or below
the first key that is left holds nothing any more, and is removed as a whole.

    <directory>/<prefix>/<number>-<first key without the prefix>, prefix and key in hexadecimal

A file is written by one opening of the store only. What a crash leaves at its end belongs to no row; nothing reads it,
and nothing is ever written behind it.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from kshare_core.errors import StorageFailure

FILE_BYTES = 64 * 1024 * 1024
"""A file takes no more values from this size on. The space of removed values is given back in such pieces."""
OPEN_FILES_LIMIT = 128
"""Files that are open for reading, and as many for writing; those used longest ago are closed first."""
BUFFERS_AT_ONCE = 512
"""Values that one system call writes; Linux allows 1,024."""

_POINTER = struct.Struct(">BBHQQII")
_MARK, _VERSION = 0xFF, 1
POINTER_BYTES = _POINTER.size


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
    """A file that takes values. Its descriptors are closed once it is ended and no sync holds it.

    It is opened twice, since Linux tells each opening once that bytes could not be written: what one sync was told, a
    later one of the same opening is not.
    """

    __slots__ = ("_holders", "_is_ended", "descriptor", "length", "number", "prefix", "second_descriptor")

    def __init__(self, prefix: bytes, number: int, path: Path) -> None:
        """Makes the file, whose name is not durable yet. OSError."""
        self.prefix = prefix
        self.number = number
        self.length = 0
        """The end of the last value."""
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.second_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
            os.close(self.descriptor)
            os.close(self.second_descriptor)


@dataclass(slots=True)
class _OfPrefix:
    """The files of one prefix: their first keys by number, in ascending order of both."""

    first_keys: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    last_key: bytes = b""
    """No value of a key up to this one is appended."""


class ValueFiles:
    """The files of one directory, which is made with the first of them. StorageFailure where the disk fails."""

    def __init__(self, directory: Path, prefix_bytes: int, *, file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._prefix_bytes = prefix_bytes
        self._file_bytes = file_bytes
        self._prefixes: dict[bytes, _OfPrefix] = {}
        self._written: OrderedDict[bytes, ValueFile] = OrderedDict()
        self._read: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._number = 0
        self._size_bytes = 0
        try:
            self._find_files()
        except (OSError, ValueError) as error:
            raise StorageFailure(f"cannot open the value files {directory}: {error}") from error

    def _find_files(self) -> None:
        if not self._directory.exists():
            return
        for folder in self._directory.iterdir():
            paths = list(folder.iterdir())
            self._size_bytes += sum(path.stat().st_size for path in paths)
            names = sorted((path.name.partition("-") for path in paths), key=lambda parts: int(parts[0]))
            prefix = bytes.fromhex(folder.name)
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
                _write_all(written.descriptor, [value for _, value in rows], written.length)
            except OSError:
                os.ftruncate(written.descriptor, written.length)
                raise
        except OSError as error:
            raise StorageFailure(f"cannot write the value files {self._directory}: {error}") from error
        pointers = []
        for _, value in rows:
            pointers.append(Pointer(written.number, written.length, len(value), crc32c(value)))
            written.length += len(value)
            self._size_bytes += len(value)
        self._prefixes[prefix].last_key = rows[-1][0]
        return pointers, written

    def _file_for(self, prefix: bytes, key: bytes) -> ValueFile:
        written = self._written.get(prefix)
        if written is not None and written.length < self._file_bytes:
            self._written.move_to_end(prefix)
            return written
        self._end(prefix)
        while len(self._written) >= OPEN_FILES_LIMIT:
            self._end(next(iter(self._written)))
        folder = self._directory / prefix.hex()
        if prefix not in self._prefixes:
            for path in (self._directory, folder):
                with suppress(FileExistsError):
                    path.mkdir()
                    _sync_directory(path.parent)
            self._prefixes[prefix] = _OfPrefix()
        self._number += 1
        written = self._written[prefix] = ValueFile(prefix, self._number, self._path(prefix, self._number, key))
        self._prefixes[prefix].first_keys[self._number] = key
        _sync_directory(folder)
        return written

    def _path(self, prefix: bytes, number: int, first_key: bytes) -> Path:
        return self._directory / prefix.hex() / f"{number:010}-{first_key[self._prefix_bytes :].hex()}"

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
        """The value at a pointer; StorageFailure where the file is missing, shorter or damaged there."""
        try:
            descriptor = self._open_for_reading(prefix, pointer.number)
            data = os.pread(descriptor, pointer.length, pointer.position)
            while len(data) < pointer.length:  # a signal, or more than the kernel reads at once
                more = os.pread(descriptor, pointer.length - len(data), pointer.position + len(data))
                if not more:
                    raise StorageFailure(
                        f"value file {pointer.number} of {self._directory / prefix.hex()} ends before byte "
                        f"{pointer.position + pointer.length}, which a row needs"
                    )
                data += more
        except OSError as error:
            raise StorageFailure(f"cannot read the value files {self._directory}: {error}") from error
        if crc32c(data) != pointer.crc:
            place = f"value file {pointer.number} of {self._directory / prefix.hex()}"
            raise StorageFailure(
                f"{place} is damaged between byte {pointer.position} and {pointer.position + pointer.length}"
            )
        return data

    def _open_for_reading(self, prefix: bytes, number: int) -> int:
        place = (prefix, number)
        descriptor = self._read.get(place)
        if descriptor is not None:
            self._read.move_to_end(place)
            return descriptor
        found = self._prefixes.get(prefix)
        if found is None or number not in found.first_keys:
            raise StorageFailure(f"value file {number} of {self._directory / prefix.hex()} is missing")
        descriptor = os.open(self._path(prefix, number, found.first_keys[number]), os.O_RDONLY | os.O_CLOEXEC)
        self._read[place] = descriptor
        if len(self._read) > OPEN_FILES_LIMIT:
            _, oldest = self._read.popitem(last=False)
            os.close(oldest)
        return descriptor

    def keep(self, prefix: bytes, first_key: bytes | None, last_key: bytes | None) -> None:
        """Removes the files that hold no value of the rows that are left, from the first to the last key.

        None: no row of the prefix is left. A file that cannot be removed stays for the next call.
        """
        found = self._prefixes[prefix]
        numbers = list(found.first_keys)
        written = self._written.get(prefix)
        for index, number in enumerate(numbers):
            following = found.first_keys[numbers[index + 1]] if index + 1 < len(numbers) else None
            is_gone = first_key is None or last_key is None
            is_below = first_key is not None and following is not None and following <= first_key
            is_above = last_key is not None and found.first_keys[number] > last_key
            if is_gone or is_below or is_above:
                if written is not None and written.number == number:
                    self._end(prefix)
                self._remove(prefix, number)
        if not found.first_keys:
            del self._prefixes[prefix]
            with suppress(OSError):
                (self._directory / prefix.hex()).rmdir()

    def _remove(self, prefix: bytes, number: int) -> None:
        found = self._prefixes[prefix]
        path = self._path(prefix, number, found.first_keys[number])
        try:
            self._size_bytes -= path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            return
        del found.first_keys[number]
        descriptor = self._read.pop((prefix, number), None)
        if descriptor is not None:
            os.close(descriptor)

    def link_to(self, directory: Path) -> None:
        """Links all files into another directory of the same file system; nothing more is written to them. OSError."""
        self.end_all()
        for prefix, found in self._prefixes.items():
            folder = directory / prefix.hex()
            folder.mkdir(parents=True)
            for number, first_key in found.first_keys.items():
                path = self._path(prefix, number, first_key)
                os.link(path, folder / path.name)
            _sync_directory(folder)
        if self._prefixes:
            _sync_directory(directory)
            _sync_directory(directory.parent)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files on the disk."""
        return self._size_bytes

    def close(self) -> None:
        self.end_all()
        for descriptor in self._read.values():
            os.close(descriptor)
        self._read.clear()


def _write_all(descriptor: int, values: Sequence[bytes], position: int) -> None:
    """Writes the values one after the other. OSError."""
    for start in range(0, len(values), BUFFERS_AT_ONCE):
        buffers = list(values[start : start + BUFFERS_AT_ONCE])
        left = sum(map(len, buffers))
        count = os.pwritev(descriptor, buffers, position)
        if count < left:  # a disk that becomes full, or more than the kernel takes at once
            rest = memoryview(b"".join(buffers))[count:]
            while rest:
                taken = os.pwrite(descriptor, rest, position + left - len(rest))
                rest = rest[taken:]
        position += left


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
