"""Live views: one computation for all viewers of the same view, sent to each whenever it changed.

A view is computed while it has viewers, at most every INTERVAL_MS, less often where it takes long. A viewer has
the newest state only: one that reads slowly misses those in between and costs no memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from typing import NamedTuple

from kshare_console.refusal import Refusal
from kshare_console.views.paging import Json

INTERVAL_MS = 500
PROBLEM_INTERVAL_MS = 2_000
IDLE_SHARE = 4
LONGEST_PAUSE_S = 5.0
"""A computation that takes long is followed by a pause of so many times its duration, at most LONGEST_PAUSE_S."""
TIME = "time_ms"
log = logging.getLogger("kshare_console")


class Message(NamedTuple):
    """What viewers get: event `state` with the view, or `problem` with an error."""

    event: str
    data: str


class LiveViews:
    """The views under way; `limit` is how many viewers there may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._views: dict[Hashable, _LiveView] = {}
        self.viewers = 0

    async def watch(self, key: Hashable, compute: Callable[[], Awaitable[Json]]) -> AsyncGenerator[Message, None]:
        """The view's states as they change; Refusal 503 beyond the limit. `key` has all that `compute` depends on."""
        if self.viewers >= self._limit:
            raise Refusal(503, "TOO_MANY_STREAMS", f"{self._limit} live streams are open; close other pages")
        self.viewers += 1
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = _LiveView(compute)
        view.viewers += 1
        try:
            seen = 0
            while await view.wait_for_newer(seen):
                seen = view.number
                if view.message is not None:
                    yield view.message
        finally:
            self.viewers -= 1
            view.viewers -= 1
            if not view.viewers:
                if self._views.get(key) is view:
                    del self._views[key]
                view.stop()

    async def close(self) -> None:
        for view in self._views.values():
            view.stop()


class _LiveView:
    """One view; its task computes it until `stop`."""

    def __init__(self, compute: Callable[[], Awaitable[Json]]) -> None:
        self._compute = compute
        self._changed = asyncio.Event()
        self.viewers = 0
        self.number = 0
        """Grows with each message."""
        self.message: Message | None = None
        self._compared = ""
        self._is_stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="live view")

    async def wait_for_newer(self, seen: int) -> bool:
        """False once the view is stopped."""
        while self.number <= seen and not self._is_stopped:
            await self._changed.wait()
        return not self._is_stopped

    def stop(self) -> None:
        self._is_stopped = True
        self._task.cancel()
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            interval_ms = INTERVAL_MS
            try:
                state = await self._compute()
                self._tell("state", state)
            except Refusal as problem:
                self._tell("problem", problem.body())
                interval_ms = PROBLEM_INTERVAL_MS
            except Exception:
                log.exception("a live view failed")
                self._tell("problem", {"error": "the console failed; its log says why", "code": "FAILED"})
                interval_ms = PROBLEM_INTERVAL_MS
            took_s = loop.time() - began_s
            await asyncio.sleep(max(interval_ms / 1000 - took_s, min(IDLE_SHARE * took_s, LONGEST_PAUSE_S)))

    def _tell(self, event: str, state: Mapping[str, object]) -> None:
        """Sends a state that differs from the one before in more than its time."""
        compared = event + json.dumps({name: value for name, value in state.items() if name != TIME})
        if compared == self._compared:
            return
        self._compared = compared
        self.message = Message(event, json.dumps(state, separators=(",", ":")))
        self.number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
