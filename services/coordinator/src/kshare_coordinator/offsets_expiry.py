"""Expiry of committed offsets, every offsets.retention.check.interval.ms.

Groups are checked in portions, one command each, so that other commands are decided in between. A portion has a limited
number of offsets; a group with more is one by itself. A command that removes as many offsets as it may is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from kshare_coordinator.core import Core
from kshare_coordinator.machine.commands import ExpireOffsets
from kshare_coordinator.machine.offsets.commits import EXPIRED_AT_ONCE
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import KafkaError, StorageFailure

GROUPS_AT_ONCE = 100
OFFSETS_AT_ONCE = 5_000

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
        for portion in portions_of_groups(state, group_ids):
            removed = EXPIRED_AT_ONCE
            while removed == EXPIRED_AT_ONCE:
                removed = await self._core.submit(ExpireOffsets(group_ids=portion))
                count += removed
        return count


def portions_of_groups(state: CoordinatorState, group_ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """In order; at most GROUPS_AT_ONCE groups with OFFSETS_AT_ONCE offsets, or one group."""
    portion: list[str] = []
    offsets = 0
    for group_id in group_ids:
        size = len(state.offsets.committed.get(group_id, ()))
        if portion and (len(portion) == GROUPS_AT_ONCE or offsets + size > OFFSETS_AT_ONCE):
            yield tuple(portion)
            portion, offsets = [], 0
        portion.append(group_id)
        offsets += size
    if portion:
        yield tuple(portion)
