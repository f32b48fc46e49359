"""Copies of a store, made while its node serves: `backups/<name>` beside the store.

RocksDB makes a copy of hard links (its tables never change), so it is in the same file system. It is complete when
`back_up` returns, and is an ordinary store.
"""

from __future__ import annotations

import re
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


def back_up(store: object, name: str) -> Path:
    """The directory of a new copy. KafkaError: INVALID_REQUEST, POLICY_VIOLATION or KAFKA_STORAGE_ERROR.

    Blocks while RocksDB flushes its memory: some milliseconds for each family in use.
    """
    if not _NAME.fullmatch(name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} is no name for a backup: letters, digits, '.', '_' and '-' are allowed, 100 at most, "
            "and no '.' at the beginning",
        )
    if not isinstance(store, CopiedStore):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "this node has no store on a disk")
    backups = store.path.parent / BACKUPS_DIRECTORY
    directory = backups / name
    if directory.exists():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"backup {directory} already exists")
    if backups.exists() and sum(1 for _ in backups.iterdir()) >= BACKUPS_LIMIT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{backups} has {BACKUPS_LIMIT} backups; remove some first")
    try:
        store.checkpoint(directory)
    except StorageFailure as failure:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
    return directory
