"""BackUpLeader: a copy of the logs' store, made while the leader serves (`kshare_runtime.store_backups`)."""

from __future__ import annotations

from kshare_rpc.generated.kshare.v1 import common_pb2
from kshare_rpc.generated.methods import BACK_UP_LEADER
from kshare_rpc.serving import serves
from kshare_runtime.store_backups import back_up_beside


class BackUpHandler:
    """Answers `Leader/BackUpLeader`; `store` is None with the kafka engine, whose logs are in the cluster."""

    def __init__(self, store: object) -> None:
        self._store = store

    @serves(BACK_UP_LEADER)
    async def __call__(
        self, request: common_pb2.BackUpStoreRequest, payload: memoryview
    ) -> common_pb2.BackUpStoreResponse:
        return common_pb2.BackUpStoreResponse(directory=str(await back_up_beside(self._store, request.name)))
