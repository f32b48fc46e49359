"""The waits of Fetch calls at one role: each client connection has at most one.

A gateway lets all leaders of a Fetch wait, and answers its client when the first of them has records. It cannot take
the other calls back. So each call names its connection (`FetchRequest.waiter`), and ends the wait of an earlier call
with the same name. Otherwise each answered Fetch would leave a wait at the other leaders until its time is over, and
all of these waits would send the next records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _not_asleep() -> None:
    return None


@dataclass(slots=True)
class FetchWait:
    """One Fetch call. Once it is over, its caller no longer needs the answer."""

    is_over: bool = False
    wake: Callable[[], None] = _not_asleep
    """Called when it is over; set by a handler that waits."""


class FetchWaits:
    """The newest call of each waiter; a call without a waiter is not counted."""

    def __init__(self) -> None:
        self._newest: dict[str, FetchWait] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def begin(self, waiter: str) -> FetchWait:
        """Ends the earlier call of the waiter; to be called before the handler's first await, in order of arrival."""
        wait = FetchWait()
        if waiter:
            earlier = self._newest.get(waiter)
            self._newest[waiter] = wait
            if earlier is not None:
                earlier.is_over = True
                earlier.wake()
        return wait

    def finish(self, waiter: str, wait: FetchWait) -> None:
        """The call is answered."""
        if self._newest.get(waiter) is wait:
            del self._newest[waiter]
