"""What of a RocksDB directory was confirmed, in a small file beside it: so that a loss does not look like a torn write.

RocksDB drops what is cut off at the end of its write-ahead log and of its manifest, because a crash in the middle of a
write leaves them so. A file that was cut off by something else (a copy that did not finish, a file system that was
repaired) looks the same, and confirmed writes would be gone without a word. Therefore each write notes, when it is
durable, the number of RocksDB's newest write, how long the manifest was before, and which log was the oldest one; at
the next open they must be there (`store_files` says what is).

The note is written without fsync, which costs three microseconds. After a crash of the process it is exact; after a
power cut it may be an older one (not older than the last `sync`), which asks for less. It is never ahead of what is durable: the number is that of a
write that was synced, and the manifest's length is the one before that write's own sync.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

from kshare_runtime.store_files import oldest_log_number

FILE_NAME = "confirmed"
_NOTE = struct.Struct(">QQQQ")
_CRC = struct.Struct(">I")
_MANIFEST = "MANIFEST-"


class ConfirmedWrites:
    """The note of one directory. `problem_before_open` and `problem_of_newest` compare it with what is there.

    `oldest_log` is the number of the oldest log that there was.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE_NAME
        self._sequence, self._manifest_number, self._manifest_bytes, self.oldest_log = self._read()
        self._file: int | None = None
        self._manifest: int | None = None
        self._synced = 0

    def _read(self) -> tuple[int, int, int, int]:
        """The last note; zeros, which ask for nothing, where there is none or it is damaged itself."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0, 0, 0, 0
        note, crc = data[: _NOTE.size], data[_NOTE.size :]
        if len(note) < _NOTE.size or crc != _CRC.pack(crc32(note)):
            return 0, 0, 0, 0
        sequence, manifest_number, manifest_bytes, oldest_log = _NOTE.unpack(note)
        return sequence, manifest_number, manifest_bytes, oldest_log

    def problem_before_open(self) -> str | None:
        """What is wrong with the manifest, while nothing has been changed yet."""
        current = self._manifest_path()
        if current is None or _number_of(current) != self._manifest_number:
            return None
        size_bytes = current.stat().st_size
        if size_bytes >= self._manifest_bytes:
            return None
        return f"Corruption: {current.name} was cut off: it has {size_bytes} of {self._manifest_bytes} bytes"

    def problem_of_newest(self, sequence: int) -> str | None:
        """What is missing where RocksDB's newest write is number `sequence`."""
        if sequence >= self._sequence:
            return None
        return (
            f"writes were confirmed up to number {self._sequence}, and only those up to {sequence} are there. Restore "
            f"the directory from a copy, or remove the file {self._path} to go on without the lost ones"
        )

    def start(self) -> None:
        """Opens the files for notes. OSError."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        current = self._manifest_path()
        if current is not None:
            self._manifest = os.open(current, os.O_RDONLY)
            self._manifest_number = _number_of(current)
        self._manifest_bytes = 0

    def manifest_bytes(self) -> int:
        """The manifest's length, to be asked before a write."""
        return 0 if self._manifest is None else os.fstat(self._manifest).st_size

    def note(self, sequence: int, manifest_bytes: int) -> None:
        """The write with this number is durable."""
        if self._file is None:
            return
        if manifest_bytes != self._manifest_bytes:  # logs are removed only after the manifest said so
            self._manifest_bytes = manifest_bytes
            self.oldest_log = oldest_log_number(self._directory)
        note = _NOTE.pack(sequence, self._manifest_number, manifest_bytes, self.oldest_log)
        try:
            os.pwrite(self._file, note + _CRC.pack(crc32(note)), 0)
        except OSError:
            # The write itself is durable and must not be answered as failed; the next open asks for less.
            os.close(self._file)
            self._file = None
        self._sequence = sequence

    def sync(self) -> None:
        """Makes the note durable; after a power cut it is not older than that."""
        if self._file is None or self._synced == self._sequence:
            return
        try:
            if self._manifest is not None:
                os.fdatasync(self._manifest)  # the note must not be ahead of it
            os.fdatasync(self._file)
        except OSError:
            return  # the next open asks for less
        self._synced = self._sequence

    def close(self) -> None:
        for descriptor in (self._file, self._manifest):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._manifest = None

    def _manifest_path(self) -> Path | None:
        try:
            name = (self._directory / "CURRENT").read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        path = self._directory / name
        return path if name.startswith(_MANIFEST) and name[len(_MANIFEST) :].isdigit() and path.exists() else None


def _number_of(manifest: Path) -> int:
    return int(manifest.name[len(_MANIFEST) :])
