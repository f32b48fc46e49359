"""The waiters for a share-partition's state writes, and whether the writes lag too much to acquire records."""

from __future__ import annotations

import asyncio

from kshare_core.errors import KafkaError
from kshare_fastpath.prompt_future import PromptFuture
from kshare_leader.share.limits import PENDING_CHANGES_LIMIT, WRITE_LAG_LIMIT_MS

Stored = PromptFuture[KafkaError | None]
"""Completes when a write ended: None if it is durable, else the error for the client. Each waiter has its own."""


class _PendingWrite:
    """The waiters for a write: one for each change that it carries."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Stored] = []

    def ended(self, error: KafkaError | None) -> None:
        for stored in self.waiting:
            if not stored.done():  # done: its waiter was cancelled
                stored.set_result(error)


class PendingWrites:
    """See the module docstring. `now_ms` is monotonic time; writes are named by the machine's write ids."""

    __slots__ = ("_began_ms", "_changes", "_writes")

    def __init__(self) -> None:
        self._writes: dict[int, _PendingWrite] = {}
        self._changes = 0
        self._began_ms: int | None = None

    def __len__(self) -> int:
        return len(self._writes)

    def wait_for(self, write_id: int) -> Stored:
        """Returns a new waiter for one change that the write carries, or will carry."""
        pending = self._writes.get(write_id)
        if pending is None:
            pending = self._writes[write_id] = _PendingWrite()
        stored: Stored = PromptFuture(loop=asyncio.get_running_loop())
        pending.waiting.append(stored)
        self._changes += 1
        return stored

    def began(self, now_ms: int) -> None:
        """Notes that the write in flight is sent now; there is at most one."""
        self._began_ms = now_ms

    def ended(self, write_id: int, error: KafkaError | None) -> None:
        """Notes that the write in flight ended, and completes its waiters."""
        self._began_ms = None
        pending = self._writes.pop(write_id, None)
        if pending is not None:
            self._changes -= len(pending.waiting)
            pending.ended(error)

    def fail_unsent(self, error: KafkaError, in_flight_write_id: int) -> None:
        """Fails changes whose write was not sent and never will be: they had no effect, and their waiters get `error`.

        The write `in_flight_write_id` still ends with `ended`; NO_WRITE: there is none.
        """
        unsent = [write_id for write_id in self._writes if write_id != in_flight_write_id]
        for pending in [self._writes.pop(write_id) for write_id in unsent]:
            self._changes -= len(pending.waiting)
            pending.ended(error)
        if in_flight_write_id not in self._writes:
            self._began_ms = None

    def is_lagging(self, now_ms: int) -> bool:
        """Whether too many changes wait, or the write in flight takes too long."""
        if self._changes >= PENDING_CHANGES_LIMIT:
            return True
        return self._began_ms is not None and now_ms - self._began_ms >= WRITE_LAG_LIMIT_MS
