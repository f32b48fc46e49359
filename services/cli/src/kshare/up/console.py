"""Output to the terminal from a thread of its own, so that a blocked terminal delays no role and no restart.

At most QUEUE_LINES are queued. Further lines are dropped and counted; the count is printed once there is room again.
"""

from __future__ import annotations

import queue
import sys
import threading

QUEUE_LINES = 10_000
CLOSE_WAIT_S = 1.0


class Console:
    """Writes lines to stdout; `close` waits at most a second for queued lines."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUE_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Never blocks."""
        if self._dropped and self._put(f"… {self._dropped} lines were dropped: the output is not read fast enough"):
            self._dropped = 0
        if not self._put(text):
            self._dropped += 1

    def close(self) -> None:
        self._put(None)
        self._thread.join(CLOSE_WAIT_S)

    def _put(self, text: str | None) -> bool:
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            return False
        return True

    def _write_all(self) -> None:
        while (text := self._queue.get()) is not None:
            try:
                sys.stdout.write(text + "\n")
                if self._queue.empty():
                    sys.stdout.flush()
            except (OSError, ValueError):
                return  # stdout is closed
