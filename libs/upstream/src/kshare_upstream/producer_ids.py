"""Producer ids without a transactional id: each request gets a fresh one (InitProducerId, KIP-98)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.partition_log import RETRY_BACKOFF_MS, OutcomeUnknown, Refused
from kshare_upstream.port import Upstream
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest

INIT_PRODUCER_ID = VersionRange(0, 4)
_PATIENCE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class ProducerId(NamedTuple):
    """A producer id and its epoch, which is 0 for a fresh id."""

    producer_id: int
    producer_epoch: int


async def fresh_producer_id(upstream: Upstream, *, deadline_ms: int = 30_000) -> ProducerId:
    """A producer id that was never used before; Refused, OutcomeUnknown."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + deadline_ms / 1000
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=deadline_ms)
    while True:
        try:
            answer = await upstream.ask_any(request, INIT_PRODUCER_ID)
        except ConnectionLost as error:
            reason = str(error)
        else:
            if answer.error_code == ErrorCode.NONE:
                return ProducerId(answer.producer_id, answer.producer_epoch)
            refused = Refused(answer.error_code, "InitProducerId")
            if answer.error_code not in _PATIENCE:
                raise refused
            reason = str(refused)
        if loop.time() + RETRY_BACKOFF_MS / 1000 > deadline_s:
            raise OutcomeUnknown(f"{reason}; given up after {deadline_ms} ms")
        await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
