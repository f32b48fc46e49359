"""BackupState: a copy of the store, made while the node serves (`kshare_runtime.store_backups`).

It is an ordinary store: `kshare state verify` and `export` read it.
"""

from __future__ import annotations

from pathlib import Path

from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import BACKUP_STATE
from kshare_rpc.serving import serves
from kshare_runtime.store_backups import back_up
from kshare_share_coordinator.checksummed_store import ChecksummedStore


class BackupService:
    """Backups of one store."""

    def __init__(self, store: ChecksummedStore) -> None:
        self._store = store

    def back_up(self, name: str) -> Path:
        """The directory of a new backup; see `store_backups.back_up`."""
        if self._store.maintained is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "this share coordinator's store is not on a disk")
        return back_up(self._store.maintained, name)

    @serves(BACKUP_STATE)
    async def backup_state(
        self, request: messages.BackupStateRequest, payload: memoryview
    ) -> messages.BackupStateResponse:
        return messages.BackupStateResponse(directory=str(self.back_up(request.name)))
