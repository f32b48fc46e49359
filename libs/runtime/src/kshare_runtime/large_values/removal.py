"""The removal of files beside the event loop.

The file system gives back the blocks of a file within `unlink`, which takes 15 to 25 ms for 64 MiB on ext4. A loop that
removed the files of a large partition itself would answer no client for seconds. Kafka has a scheduler thread for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Removals(Protocol):
    """Runs removals one after the other, in the order in which they were begun."""

    def begin(self, remove: Callable[[], None]) -> None:
        """Runs `remove`, which raises nothing, now or later."""
        ...

    def close(self) -> None:
        """Returns when no removal runs and none will; those that wait are given up."""
        ...


class ThreadRemovals:
    """Removals by a thread of this process, which ends when nothing is left to remove."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        """Held to change `_waiting`, or `_thread` with it."""
        self._thread: threading.Thread | None = None

    def begin(self, remove: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(remove)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="file-removal", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                remove = self._waiting.popleft()
            remove()
