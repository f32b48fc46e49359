"""The note of confirmed writes of a RocksDB directory: a small file that distinguishes lost writes from a torn write.

At open, RocksDB drops a truncated record at the end of its write-ahead log or manifest, because a crash in the middle
of a write leaves one. A file truncated by something else (an unfinished copy, a repaired file system) looks the same,
and RocksDB would drop confirmed writes without an error. Therefore each durable write notes the number of RocksDB's
newest write, the length of the manifest before it, and the existing logs. At the next open the first two must be
present, and each of the logs that the manifest still needs. RocksDB removes a log after a change of the manifest, so a
log that is needed and missing shows that the manifest is an older one.

The note is written without fsync, which costs four microseconds. After a crash of the process it is exact. After a
power cut it may be an older one (not older than the last `sync`), which requires less. It is never ahead of what is
durable: the number is that of a synced write, and the manifest's length is the one before that write's own sync.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from zlib import crc32

from kshare_runtime.store_files import log_numbers

FILE_NAME = "confirmed"
NOTED_LOGS_LIMIT = 50
"""Logs in a note, the newest ones; there are usually a few."""
SETTLED_NS = 50_000_000
"""Nanoseconds without a change after which the next change of a directory certainly has another modification time."""
_NOTE = struct.Struct(">QQQ")
_LOG = struct.Struct(">Q")
_CRC = struct.Struct(">I")
_MANIFEST = "MANIFEST-"


class ConfirmedWrites:
    """The note of one directory. `problem_before_open` and `problem_of_newest` compare it with the directory.

    `logs` are the numbers of the logs that existed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE_NAME
        self._sequence, self._manifest_number, self._manifest_bytes, self.logs = self._read()
        self._logs_before = self.logs
        self._noted: tuple[list[int], list[int]] | None = None
        self._log_bytes = b""
        self._listed_at_change: int | None = None
        self._file: int | None = None
        self._manifest: int | None = None
        self._opened_directory: int | None = None
        self._synced = 0

    def _read(self) -> tuple[int, int, int, list[int]]:
        """The last note; zeros, which require nothing, where it is missing or damaged."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0, 0, 0, []
        note, crc = data[: -_CRC.size], data[-_CRC.size :]
        if len(note) < _NOTE.size or len(note) % _LOG.size or crc != _CRC.pack(crc32(note)):
            return 0, 0, 0, []
        sequence, manifest_number, manifest_bytes = _NOTE.unpack_from(note)
        logs = [number for (number,) in _LOG.iter_unpack(note[_NOTE.size :]) if number]
        return sequence, manifest_number, manifest_bytes, logs

    def problem_before_open(self) -> str | None:
        """The problem of a truncated manifest, found before RocksDB changes anything; None where it is complete."""
        current = self._manifest_path()
        if current is None or _number_of(current) != self._manifest_number:
            return None
        size_bytes = current.stat().st_size
        if size_bytes >= self._manifest_bytes:
            return None
        return f"Corruption: {current.name} was cut off: it has {size_bytes} of {self._manifest_bytes} bytes"

    def problem_of_newest(self, sequence: int) -> str | None:
        """The problem of lost writes where RocksDB's newest write is number `sequence`; None where none is lost."""
        if sequence >= self._sequence:
            return None
        return (
            f"writes were confirmed up to number {self._sequence}, but the files end at {sequence}. Restore "
            f"the directory from a copy, or remove the file {self._path} to continue without the lost ones"
        )

    def start(self) -> None:
        """Opens the files for notes. OSError."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._opened_directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        current = self._manifest_path()
        if current is not None:
            self._manifest = os.open(current, os.O_RDONLY)
            self._manifest_number = _number_of(current)

    def manifest_bytes(self) -> int:
        """The manifest's length, to be read before a write; it also lists the logs.

        The logs are listed first: a log that is removed between the two steps is not needed by the manifest of this
        length.
        """
        self._logs_before = self.listed_logs()
        return 0 if self._manifest is None else os.fstat(self._manifest).st_size

    def note(self, sequence: int, manifest_bytes: int) -> None:
        """Notes that the write with this number is durable."""
        if self._file is None:
            return
        try:
            note = _NOTE.pack(sequence, self._manifest_number, manifest_bytes) + self._logs_of_note()
            os.pwrite(self._file, note + _CRC.pack(crc32(note)), 0)
        except OSError:
            # The write itself is durable and must not be answered as failed; the next open requires less.
            os.close(self._file)
            self._file = None
        self._sequence = sequence

    def listed_logs(self) -> list[int]:
        """The existing logs; the cached list where the directory did not change since."""
        assert self._opened_directory is not None
        changed_ns = os.fstat(self._opened_directory).st_mtime_ns
        if changed_ns != self._listed_at_change:
            self.logs = log_numbers(self._directory)
            self._listed_at_change = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else None
        return self.logs

    def _logs_of_note(self) -> bytes:
        """The logs before and after the write, at a fixed size: each note overwrites the whole of the one before."""
        lists = (self._logs_before, self.listed_logs())
        if self._noted is None or lists[0] is not self._noted[0] or lists[1] is not self._noted[1]:
            numbers = sorted({*lists[0], *lists[1]})[-NOTED_LOGS_LIMIT:]
            self._log_bytes = b"".join(map(_LOG.pack, [0] * (NOTED_LOGS_LIMIT - len(numbers)) + numbers))
            self._noted = lists
        return self._log_bytes

    def sync(self) -> None:
        """Makes the note durable; after a power cut it is not older than this one."""
        if self._file is None or self._synced == self._sequence:
            return
        try:
            if self._manifest is not None:
                os.fdatasync(self._manifest)  # the note must not be ahead of the manifest
            os.fdatasync(self._file)
        except OSError:
            return  # the next open requires less
        self._synced = self._sequence

    def close(self) -> None:
        for descriptor in (self._file, self._manifest, self._opened_directory):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._manifest = self._opened_directory = None

    def _manifest_path(self) -> Path | None:
        try:
            name = (self._directory / "CURRENT").read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        path = self._directory / name
        return path if name.startswith(_MANIFEST) and name[len(_MANIFEST) :].isdigit() and path.exists() else None


def _number_of(manifest: Path) -> int:
    return int(manifest.name[len(_MANIFEST) :])
