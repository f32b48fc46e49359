"""Waits for a write learn its outcome, even if other waits for it are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.machine.interval_map import NO_WRITE
from kshare_leader.share.pending_writes import PendingWrites

ERROR = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "gone")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda writes: writes.ended(1, None), None),
        (lambda writes: writes.ended(1, ERROR), ERROR),
        (lambda writes: writes.fail_unsent(ERROR, NO_WRITE), ERROR),
    ],
)
def test_a_cancelled_wait_does_not_keep_others_from_being_told(
    end: Callable[[PendingWrites], None], told: KafkaError | None
) -> None:
    async def scene() -> None:
        writes = PendingWrites()
        first, gave_up, last = (writes.wait_for(1) for _ in range(3))
        gave_up.cancel()
        end(writes)
        assert (await first, await last) == (told, told)
        assert gave_up.cancelled() and len(writes) == 0

    asyncio.run(scene())
