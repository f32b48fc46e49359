"""Expiry of committed offsets, every offsets.retention.check.interval.ms.

Groups are checked in portions, one command each, so that other commands are decided in between.
"""

from __future__ import annotations

import asyncio
import logging

from kshare_coordinator.core import Core
from kshare_coordinator.machine.commands import ExpireOffsets
from kshare_core.errors import KafkaError, StorageFailure

GROUPS_AT_ONCE = 100

log = logging.getLogger(__name__)


class OffsetsExpiry:
    """The expiry loop; `run` ends only when cancelled. After a failed write the next run finds the same offsets."""

    def __init__(self, core: Core, interval_ms: int) -> None:
        self._core = core
        self._interval_ms = interval_ms

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                count = await self._look()
            except (KafkaError, StorageFailure) as failure:
                log.error("expired offsets could not be removed, retrying later: %s", failure)
                continue
            if count:
                log.info("removed %d committed offsets older than their retention time", count)

    async def _look(self) -> int:
        state = self._core.state
        group_ids = sorted({*state.offsets.group_ids(), *state.classic_groups, *state.consumer_groups})
        count = 0
        for first in range(0, len(group_ids), GROUPS_AT_ONCE):
            portion = tuple(group_ids[first : first + GROUPS_AT_ONCE])
            count += await self._core.submit(ExpireOffsets(group_ids=portion))
        return count
