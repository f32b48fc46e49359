"""The reserved length of RocksDB's newest write-ahead log, which makes each fsync cheaper.

A write that extends a file changes the file's length too, and its fsync waits for the file system's journal as well as
for the data. Where the length is reserved, the fsync waits for the data alone: a third less time, measured on ext4.
RocksDB reserves space but not length, so a store asks the file system for zeros behind the log's data.

RocksDB removes the zeros when it closes a log. A crash leaves them. RocksDB skips them when it reads the log, and
`store_files` knows that a torn write is followed by ZEROS_BYTES of them or more, not by the end of the file. So many
are behind each write to a log whose length was reserved once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kshare_runtime.store_files import BLOCK_BYTES, ZEROS_BYTES

RESERVED_BYTES = 4 * 1024 * 1024
"""Bytes reserved at a time."""
LARGE_WRITE_BYTES = 64 * 1024
"""A write from this size on gains nothing from a reservation, and begins none."""

_RECORD_BYTES = 32
"""An upper bound of RocksDB's overhead for a small batch: heads of fragments, and the rest of a block."""
_FRAGMENT_HEAD_BYTES = 7
_LEAST_LEFT_BYTES = 4 * ZEROS_BYTES
"""Of zeros behind a write. More than needed: a new length may not be durable yet when a power cut tears the write that
needed it."""


class ReservedLog:
    """The reserved length of a directory's newest log. It never fails a write: an error only ends the reservation."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: Sequence[int] = ()
        self._number = -1
        self._descriptor: int | None = None
        self._written_bytes = 0
        """An estimate of the bytes written to the log, rather too high than too low."""
        self._length = 0
        self._is_reserved = False

    def before_write(self, logs: Sequence[int], size_bytes: int) -> None:
        """Called before a batch of this size is written; `logs` are the numbers of the existing logs."""
        if logs is not self._logs:
            self._logs = logs
            self._turn_to(max(logs, default=-1))
        if self._descriptor is None:
            return
        self._written_bytes += size_bytes + _RECORD_BYTES + size_bytes // BLOCK_BYTES * _FRAGMENT_HEAD_BYTES
        lacks_zeros = self._written_bytes + _LEAST_LEFT_BYTES > self._length
        if lacks_zeros and (self._is_reserved or size_bytes < LARGE_WRITE_BYTES):
            self._reserve(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _turn_to(self, number: int) -> None:
        if number == self._number:
            return
        self.close()
        self._number = number
        self._is_reserved = False
        try:
            self._descriptor = os.open(self._directory / f"{number:06}.log", os.O_RDWR)
            self._written_bytes = self._length = os.fstat(self._descriptor).st_size
        except OSError:  # the log was removed, or none exists
            self.close()

    def _reserve(self, descriptor: int) -> None:
        try:
            os.posix_fallocate(descriptor, self._written_bytes, RESERVED_BYTES)
        except (OSError, AttributeError):  # no space, or a file system or operating system without support
            self.close()
            return
        self._length = self._written_bytes + RESERVED_BYTES
        self._is_reserved = True
