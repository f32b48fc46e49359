"""Removals of value files that run when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RemovalsAtOnce:
    """Removes within `begin`."""

    def begin(self, remove: Callable[[], None]) -> None:
        remove()

    def close(self) -> None: ...


class HeldRemovals:
    """Removes with `run`; what waits at `close` is given up, as by a crash."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def begin(self, remove: Callable[[], None]) -> None:
        self.waiting.append(remove)

    def close(self) -> None:
        self.waiting.clear()

    def run(self, count: int | None = None) -> None:
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.popleft()()
