"""BackUpCoordinator: a copy of the metadata's store, made while it serves (`kshare_runtime.store_backups`)."""

from __future__ import annotations

from collections.abc import Callable

from kshare_rpc.generated.kshare.v1 import common_pb2
from kshare_rpc.generated.methods import BACK_UP_COORDINATOR
from kshare_rpc.serving import serves
from kshare_runtime.store_backups import back_up


class BackUpHandler:
    """Answers `Coordinator/BackUpCoordinator`; `store` returns None where the metadata is in etcd or in a cluster."""

    def __init__(self, store: Callable[[], object]) -> None:
        self._store = store

    @serves(BACK_UP_COORDINATOR)
    async def back_up(
        self, request: common_pb2.BackUpStoreRequest, payload: memoryview
    ) -> common_pb2.BackUpStoreResponse:
        return common_pb2.BackUpStoreResponse(directory=str(back_up(self._store(), request.name)))
