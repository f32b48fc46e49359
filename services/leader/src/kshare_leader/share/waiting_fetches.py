"""The fetches that wait for records of one share-partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kshare_leader.machine.interval_map import Owner


class Waiter(Protocol):
    """A fetch that waits for records of one or more share-partitions."""

    @property
    def owner(self) -> Owner: ...
    @property
    def fetch_number(self) -> int: ...

    def wake(self) -> None:
        """Tries to acquire; called repeatedly until the fetch removes itself from the list."""
        ...

    def end(self) -> None:
        """Ends the wait without records."""
        ...


class WaitingFetches:
    """The fetches in the order in which they began to wait; true if there are any.

    `may_wake` returns whether a fetch would be answered now: with records, or since the share-partition was dropped.
    """

    __slots__ = ("_loop", "_may_wake", "_waiters", "_wake_handle")

    def __init__(self, may_wake: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._may_wake = may_wake
        self._waiters: dict[Waiter, None] = {}
        self._wake_handle: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def schedule_wake(self) -> None:
        """Wakes them in the next turn of the event loop."""
        if self._wake_handle is None and self._waiters:
            self._wake_handle = self._loop.call_soon(self._wake)

    def wake_now(self) -> None:
        """Makes up for a scheduled wake-up at once; a new fetch calls this before it acquires records."""
        if self._wake_handle is not None:
            self._wake_handle.cancel()
            self._wake()

    def _wake(self) -> None:
        """Wakes the longest waiting first, while there are deliverable records."""
        self._wake_handle = None
        for waiter in list(self._waiters):
            if not self._may_wake():
                return
            if waiter in self._waiters:
                waiter.wake()

    def end(self, is_ended: Callable[[Waiter], bool]) -> None:
        """Ends the waits for which `is_ended` is true."""
        for waiter in [waiter for waiter in self._waiters if is_ended(waiter)]:
            waiter.end()

    def has_newer(self, owner: Owner, fetch_number: int) -> bool:
        """Whether the owner waits with a fetch after this number."""
        return any(waiter.owner == owner and waiter.fetch_number > fetch_number for waiter in self._waiters)
