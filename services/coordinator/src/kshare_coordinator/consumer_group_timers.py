"""Session and rebalance timeouts of members of consumer groups, at the start of a coordinator and while it runs.

They are deadlines on the event loop's clock, not records. After a start every member gets a full session timeout, and a
member that has to revoke partitions gets its full rebalance timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from kshare_coordinator.core import Core
from kshare_coordinator.deadlines import Deadlines
from kshare_coordinator.machine.commands import ExpireRevocation, RevocationBegun, RevocationEnded
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.values import MemberState
from kshare_core.errors import KafkaError, StorageFailure

STORAGE_RETRY_MS = 1_000
"""Delay before an expiry is retried whose write failed."""

log = logging.getLogger(__name__)

Revocation = tuple[str, str, int]
"""Group id, member id, and the member epoch in which partitions are to be revoked."""


class ConsumerGroupTimers:
    """The rebalance timeouts; `session` sets a member's session timeout."""

    def __init__(
        self, core: Core, settings: ConsumerGroupSettings, session: Callable[[tuple[str, str], int], None]
    ) -> None:
        self._core = core
        self._settings = settings
        self._session = session
        self._revocations: Deadlines[Revocation] = Deadlines(self._expired)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def resume(self, group_ids: Iterable[str]) -> None:
        """Starts the timers of groups that were loaded; ids of groups of other types are ignored."""
        state = self._core.state
        for group_id in sorted(group_ids):
            group = state.consumer_groups.get(group_id)
            if group is None:
                continue
            timeout_ms = self._settings.intervals(state, group_id).session_timeout_ms
            for member_id, member in sorted(group.members.items()):
                own_ms = timeout_ms if member.classic is None else member.classic.session_timeout_ms
                self._session((group_id, member_id), own_ms)
                current = group.current.get(member_id)
                if current is not None and current.state is MemberState.UNREVOKED_PARTITIONS:
                    self._revocations.set((group_id, member_id, current.member_epoch), member.rebalance_timeout_ms)

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Removes the timeouts of groups that another coordinator has gained."""
        self._revocations.forget(lambda revocation: is_meant(revocation[0]))

    def act(self, effect: RevocationBegun | RevocationEnded) -> None:
        revocation = (effect.group_id, effect.member_id, effect.member_epoch)
        if isinstance(effect, RevocationBegun):
            self._revocations.set(revocation, effect.timeout_ms)
        else:
            self._revocations.remove(revocation)

    async def stop(self) -> None:
        self._revocations.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _expired(self, revocations: list[Revocation]) -> None:
        for revocation in revocations:
            task = asyncio.get_running_loop().create_task(self._expire(revocation))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _expire(self, revocation: Revocation) -> None:
        group_id, member_id, member_epoch = revocation
        command = ExpireRevocation(group_id=group_id, member_id=member_id, member_epoch=member_epoch)
        try:
            await self._core.submit(command)
            log.info(
                "group %s: member %s is removed, it did not revoke its partitions within its rebalance timeout",
                group_id,
                member_id,
            )
        except (KafkaError, StorageFailure) as failure:
            log.error(
                "group %s: the removal of member %s could not be written, retrying: %s", group_id, member_id, failure
            )
            if self._core.keeps_group(group_id):
                self._revocations.set(revocation, STORAGE_RETRY_MS)
