"""The fetches that wait for records of one share-partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.machine.interval_map import Owner


class Waiter(Protocol):
    """A fetch that waits for records of one or more share-partitions."""

    @property
    def owner(self) -> Owner: ...
    @property
    def fetch_number(self) -> int: ...
    @property
    def wait_number(self) -> int:
        """Ascends in the order in which the fetches of a leader began to wait, or the sessions that they belong to."""
        ...

    @property
    def session(self) -> Sleeper | None:
        """The session whose fetch it is; None where the fetch names its partitions."""
        ...

    def wake(self) -> None:
        """Tries to acquire; called repeatedly until the fetch removes itself from the list."""
        ...

    def end(self) -> None:
        """Ends the wait without records."""
        ...


class Sleeper(Protocol):
    """A fetch session that found nothing to deliver here; `waiter` is its fetch that waits, None between fetches."""

    @property
    def waiter(self) -> Waiter | None: ...

    def rouse(self, key: SharePartitionKey) -> None:
        """Makes the session look here again."""
        ...


class WaitingFetches:
    """The fetches in the order in which they began to wait; true if there are any.

    Fetches that name their partitions are added one by one. Fetches of sessions wait wherever their session sleeps.
    `may_wake` returns whether a fetch would be answered now: with records, or since the share-partition was dropped.
    """

    __slots__ = ("_asleep", "_loop", "_may_wake", "_waiters", "_wake_handle")

    def __init__(self, may_wake: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._may_wake = may_wake
        self._waiters: dict[Waiter, None] = {}
        self._asleep: dict[Sleeper, SharePartitionKey] = {}
        self._wake_handle: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiters) or any(sleeper.waiter is not None for sleeper in self._asleep)

    def add(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def sleep(self, sleeper: Sleeper, key: SharePartitionKey) -> None:
        self._asleep[sleeper] = key

    def forget_sleeper(self, sleeper: Sleeper) -> None:
        self._asleep.pop(sleeper, None)

    def schedule_wake(self) -> None:
        """Wakes them in the next turn of the event loop."""
        if self._wake_handle is None and (self._waiters or self._asleep):
            self._wake_handle = self._loop.call_soon(self._wake)

    def wake_now(self) -> None:
        """Makes up for a scheduled wake-up at once; a new fetch calls this before it acquires records."""
        if self._wake_handle is not None:
            self._wake_handle.cancel()
            self._wake()

    def _wake(self) -> None:
        """Wakes the longest waiting first, while there are deliverable records."""
        self._wake_handle = None
        waiters = list(self._waiters)
        if self._asleep:
            waiters += self._of_sleepers()
            waiters.sort(key=lambda waiter: waiter.wait_number)
        for waiter in waiters:
            if not self._may_wake():
                return
            if waiter in self._waiters:
                waiter.wake()
            elif (sleeper := self._sleeper_of(waiter)) is not None:
                sleeper.rouse(self._asleep.pop(sleeper))
                waiter.wake()

    def _of_sleepers(self) -> list[Waiter]:
        """The waiting fetches of sessions; sessions between two fetches are roused, and look here with their next."""
        waiters: list[Waiter] = []
        for sleeper in list(self._asleep):
            if sleeper.waiter is not None:
                waiters.append(sleeper.waiter)
            else:
                sleeper.rouse(self._asleep.pop(sleeper))
        return waiters

    def _sleeper_of(self, waiter: Waiter) -> Sleeper | None:
        """The session that sleeps here and whose fetch waits still."""
        sleeper = waiter.session
        return sleeper if sleeper is not None and sleeper.waiter is waiter and sleeper in self._asleep else None

    def _all(self) -> Iterator[Waiter]:
        yield from self._waiters
        for sleeper in self._asleep:
            if sleeper.waiter is not None:
                yield sleeper.waiter

    def end(self, is_ended: Callable[[Waiter], bool]) -> None:
        """Ends the waits for which `is_ended` is true; from now on they count no more."""
        for waiter in [waiter for waiter in self._all() if is_ended(waiter)]:
            self.remove(waiter)
            waiter.end()

    def has_newer(self, owner: Owner, fetch_number: int) -> bool:
        """Whether the owner waits with a fetch after this number."""
        return any(waiter.owner == owner and waiter.fetch_number > fetch_number for waiter in self._all())
