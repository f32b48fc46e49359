"""Deadlines of many keys on one timer of the event loop: leases of nodes, sessions of members.

Extending a deadline, which every heartbeat does, costs one dictionary write; the heap is read only when the timer
fires. A timer that fires more than STALL_MS late means that this process was stalled (SIGSTOP, a slow disk) and
received no heartbeats. All deadlines are then extended by the delay and STALL_MS, since the nodes and members may have
sent theirs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")

STALL_MS = 1_000
"""How late the timer may fire before the process counts as stalled."""


class Deadlines(Generic[Key]):
    """Deadlines by key. `on_expired` gets expired keys, earliest first; they are removed before it is called."""

    def __init__(self, on_expired: Callable[[list[Key]], None]) -> None:
        self._on_expired = on_expired
        self._deadlines: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._in_heap: dict[Key, float] = {}
        self._serial = 0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """When the timer fires. It is kept here, because uvloop's handle of a time that has come does not know it."""

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: Key, delay_ms: int) -> None:
        """Sets or replaces the key's deadline, `delay_ms` from now; below 0 is 0, as a late timer means a stall."""
        deadline = asyncio.get_running_loop().time() + max(0, delay_ms) / 1000
        self._deadlines[key] = deadline
        if deadline < self._in_heap.get(key, float("inf")):
            self._push(deadline, key)
            self._arm()

    def remaining_ms(self, key: Key) -> int | None:
        """Time until the key expires; None if it has no deadline."""
        deadline = self._deadlines.get(key)
        return None if deadline is None else max(0, int((deadline - asyncio.get_running_loop().time()) * 1000))

    def remove(self, key: Key) -> None:
        """Removes the key's deadline; its entry in the heap is dropped when it falls due."""
        self._deadlines.pop(key, None)

    def forget(self, is_meant: Callable[[Key], bool]) -> None:
        """Removes all keys for which `is_meant` is true."""
        for key in [key for key in self._deadlines if is_meant(key)]:
            self.remove(key)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadlines.clear()
        self._in_heap.clear()
        self._heap.clear()

    def _push(self, deadline: float, key: Key) -> None:
        self._serial += 1
        self._in_heap[key] = deadline
        heapq.heappush(self._heap, (deadline, self._serial, key))

    def _arm(self) -> None:
        first = self._heap[0][0] if self._heap else None
        if self._timer is not None:
            if first is not None and self._timer_at <= first:
                return
            self._timer.cancel()
            self._timer = None
        if first is not None:
            self._timer_at = first
            self._timer = asyncio.get_running_loop().call_at(first, self._fire, first)

    def _fire(self, planned: float) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        late = now - planned
        if late * 1000 > STALL_MS:
            moved = late + STALL_MS / 1000
            self._deadlines = {key: deadline + moved for key, deadline in self._deadlines.items()}
        expired: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            scheduled, _, key = heapq.heappop(self._heap)
            if self._in_heap.get(key) != scheduled:
                continue
            del self._in_heap[key]
            deadline = self._deadlines.get(key)
            if deadline is not None and deadline > now:
                self._push(deadline, key)
            elif deadline is not None:
                del self._deadlines[key]
                expired.append(key)
        self._arm()
        if expired:
            self._on_expired(expired)
