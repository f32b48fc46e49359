"""Copying of files with their checksums, durably."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from kshare.backup.manifest import BackedUpFile

PIECE_BYTES = 4 * 1024 * 1024
NOT_COPIED = ("LOCK", "LOG")
"""Names, or their beginnings, of RocksDB's files without data."""


def copied_file(source: Path, target: Path, name: str) -> BackedUpFile:
    """Copies a file durably, and says what was read. OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size_bytes = hashlib.sha256(), 0
    with target.open("xb") as file:
        for piece in _pieces(source):
            digest.update(piece)
            size_bytes += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return BackedUpFile(name, size_bytes, digest.hexdigest())


def examined_file(path: Path, name: str) -> BackedUpFile:
    """The size and checksum of a file. OSError."""
    digest, size_bytes = hashlib.sha256(), 0
    for piece in _pieces(path):
        digest.update(piece)
        size_bytes += len(piece)
    return BackedUpFile(name, size_bytes, digest.hexdigest())


def file_names(directory: Path) -> list[str]:
    """The files of a store, relative to its directory."""
    paths = (path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(NOT_COPIED))
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def sync_directories(root: Path) -> None:
    """Makes the names of all files below `root` durable. OSError."""
    for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
