"""Copies of a store, made while its node serves: `backups/<name>` beside the store.

RocksDB makes a copy of hard links (its tables never change), so it is in the same file system. It is complete when
`back_up` returns, and is an ordinary store.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure

BACKUPS_DIRECTORY = "backups"
BACKUPS_LIMIT = 100
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@runtime_checkable
class CopiedStore(Protocol):
    """A store on a disk; see RocksStore. A store in memory is none."""

    @property
    def path(self) -> Path: ...

    def checkpoint(self, directory: Path) -> None: ...


@runtime_checkable
class StoreCopiedBeside(CopiedStore, Protocol):
    """A CopiedStore that makes the long part of a copy beside the event loop; see RocksValueFileStore."""

    async def checkpoint_beside(self, directory: Path) -> None: ...


def backup_directory(store: Path, name: str) -> Path:
    """Where the backup of the store in a directory lies."""
    return store.parent / BACKUPS_DIRECTORY / name


def back_up(store: object, name: str) -> Path:
    """The directory of a new copy. KafkaError: INVALID_REQUEST, POLICY_VIOLATION or KAFKA_STORAGE_ERROR.

    Blocks while RocksDB flushes its memory: some milliseconds for each family in use. Nothing is left of a failed copy.
    """
    copied, directory = _new_backup(store, name)
    with _removed_on_failure(directory):
        copied.checkpoint(directory)
    return directory


async def back_up_beside(store: object, name: str) -> Path:
    """As `back_up`, but a StoreCopiedBeside serves while its copy is completed."""
    copied, directory = _new_backup(store, name)
    with _removed_on_failure(directory):
        if isinstance(copied, StoreCopiedBeside):
            await copied.checkpoint_beside(directory)
        else:
            copied.checkpoint(directory)
    return directory


def _new_backup(store: object, name: str) -> tuple[CopiedStore, Path]:
    if not _NAME.fullmatch(name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} is no name for a backup: letters, digits, '.', '_' and '-' are allowed, 100 at most, "
            "and no '.' at the beginning",
        )
    if not isinstance(store, CopiedStore):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "this node has no store on a disk")
    directory = backup_directory(store.path, name)
    backups = directory.parent
    if directory.exists():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"backup {directory} already exists")
    if backups.exists() and sum(1 for _ in backups.iterdir()) >= BACKUPS_LIMIT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{backups} has {BACKUPS_LIMIT} backups; remove some first")
    return store, directory


@contextmanager
def _removed_on_failure(directory: Path) -> Iterator[None]:
    """Removes an incomplete copy, whose links would keep the space of all tables."""
    try:
        yield
    except BaseException as failure:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(failure, StorageFailure):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        raise
