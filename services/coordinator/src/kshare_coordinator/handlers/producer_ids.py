"""Handler of InitProducerId.

A request with a transactional id is decided by the machine. Any other request gets a new id with epoch 0, whatever id
it names, as in Kafka: a producer without transactions manages its own epochs. Ids come from blocks that the machine
allocates durably, so an id is never given twice. The rest of a block is skipped when the coordinator stops, and where a
leader registers whose logs may have seen it (`machine.catalog.seen_producer_ids`).
"""

from __future__ import annotations

import asyncio

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves


def _no_producer_id(request: pb.InitProducerIdRequest, code: ErrorCode, message: str) -> pb.InitProducerIdResponse:
    return pb.InitProducerIdResponse(error_code=code, error_message=message, producer_id=-1, producer_epoch=-1)


class ProducerIdHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._block = iter(range(0))
        self._least = 0
        """No id below is given out any more."""
        self._allocation: asyncio.Future[range] | None = None

    @serves(methods.INIT_PRODUCER_ID, refused=_no_producer_id)
    async def init_producer_id(
        self, request: pb.InitProducerIdRequest, payload: memoryview
    ) -> pb.InitProducerIdResponse:
        if request.has_transactional_id:
            return await self._core.submit(commands.InitTransactionalProducer(request=request))
        return pb.InitProducerIdResponse(producer_id=await self._next(), producer_epoch=0)

    def skip_below(self, end: int) -> None:
        """A leader that registered may have seen all ids below `end`. The machine's counter is at `end` at least."""
        self._least = max(self._least, end)

    async def _next(self) -> int:
        while (producer_id := next((each for each in self._block if each >= self._least), None)) is None:
            if self._allocation is None:
                self._allocation = self._core.submit(commands.AllocateProducerIds())
            await self._allocated(self._allocation)
        return producer_id

    async def _allocated(self, allocation: asyncio.Future[range]) -> None:
        """Waits for an allocation; the first waiter that continues stores its block.

        That may be a request that arrives when the allocation is already done. A callback of the future would run
        after that request, which would then wait for a done future for ever.
        """
        try:
            await asyncio.shield(allocation)
        finally:
            if allocation.done() and self._allocation is allocation:
                self._allocation = None
                if not allocation.cancelled() and allocation.exception() is None:
                    self._block = iter(allocation.result())
