"""BackupState: a copy of the store, made while the node serves.

RocksDB makes it of hard links (its tables never change), so it is in the same file system: `backups/<name>` beside the
store. It is complete when the call is answered, and is an ordinary store: `kshare state verify` and `export` read it.
"""

from __future__ import annotations

import re
from pathlib import Path

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import BACKUP_STATE
from kshare_rpc.serving import serves
from kshare_share_coordinator.checksummed_store import ChecksummedStore

BACKUPS_DIRECTORY = "backups"
BACKUPS_LIMIT = 100
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class BackupService:
    """Backups of one store."""

    def __init__(self, store: ChecksummedStore) -> None:
        self._store = store

    def back_up(self, name: str) -> Path:
        """The directory of a new backup. KafkaError: INVALID_REQUEST, POLICY_VIOLATION or KAFKA_STORAGE_ERROR.

        Blocks while RocksDB flushes its memory: some milliseconds for each state partition in use.
        """
        if not _NAME.fullmatch(name):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name!r} is no name for a backup: letters, digits, '.', '_' and '-' are allowed, 100 at most, "
                "and no '.' at the beginning",
            )
        maintained = self._store.maintained
        if maintained is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "this share coordinator's store is not on a disk")
        backups = maintained.path.parent / BACKUPS_DIRECTORY
        directory = backups / name
        if directory.exists():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"backup {directory} already exists")
        if backups.exists() and sum(1 for _ in backups.iterdir()) >= BACKUPS_LIMIT:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{backups} has {BACKUPS_LIMIT} backups; remove some first")
        try:
            maintained.checkpoint(directory)
        except StorageFailure as failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        return directory

    @serves(BACKUP_STATE)
    async def backup_state(
        self, request: messages.BackupStateRequest, payload: memoryview
    ) -> messages.BackupStateResponse:
        return messages.BackupStateResponse(directory=str(self.back_up(request.name)))
