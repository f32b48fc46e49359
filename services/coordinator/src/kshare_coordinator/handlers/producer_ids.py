"""InitProducerId of producers without a transactional id.

Ids come from blocks that the machine hands out durably, so an id is never given twice; what is left of a block when
the coordinator stops is skipped. A producer that names its id gets the next epoch of it, and a new id when the epochs
are used up (KIP-360).
"""

from __future__ import annotations

import asyncio

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands, records
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

LAST_PRODUCER_EPOCH = (1 << 15) - 2
"""The last epoch but one of an int16: Kafka never lets a producer use the last."""


class ProducerIdHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._block = iter(range(0))
        self._allocation: asyncio.Future[range] | None = None

    async def init_producer_id(
        self, request: pb.InitProducerIdRequest, payload: memoryview
    ) -> pb.InitProducerIdResponse:
        try:
            producer_id, producer_epoch = await self._assigned(request)
        except KafkaError as error:
            return pb.InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
        except StorageFailure:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return pb.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)

    async def _assigned(self, request: pb.InitProducerIdRequest) -> tuple[int, int]:
        if request.producer_id < 0:
            if request.producer_id != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Producer id {request.producer_id} is neither -1 nor an id"
                )
            return await self._next(), 0
        if not 0 <= request.producer_epoch <= LAST_PRODUCER_EPOCH + 1:
            text = f"Producer epoch {request.producer_epoch} of id {request.producer_id} is no epoch"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if request.producer_id >= self._core.state.numbers.get(records.NEXT_PRODUCER_ID, 0):
            text = f"Producer id {request.producer_id} was never given to a producer"
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
        if request.producer_epoch >= LAST_PRODUCER_EPOCH:
            return await self._next(), 0
        return request.producer_id, request.producer_epoch + 1

    async def _next(self) -> int:
        while True:
            producer_id = next(self._block, None)
            if producer_id is not None:
                return producer_id
            if self._allocation is None:
                self._allocation = self._core.submit(commands.AllocateProducerIds())
                self._allocation.add_done_callback(self._take)
            await asyncio.shield(self._allocation)

    def _take(self, allocation: asyncio.Future[range]) -> None:
        """Runs before those who wait for the block go on: callbacks are called in the order they were added."""
        self._allocation = None
        if not allocation.cancelled() and allocation.exception() is None:
            self._block = iter(allocation.result())
