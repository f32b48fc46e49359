"""Descriptions of topics that callers share: those who ask for the same topics at the same time get one answer.

Metadata describes a topic with all of its partitions. A leader that opens 2,000 partitions of a topic, or has to find
new leaders for them, asks for each one by itself, and would read four million partitions without this.

Every caller gets a description that was asked for after its call. While one is under way, the callers that come share
the next one. That waits for the one under way no longer than UNDER_WAY_WAIT_MS, because a broker may hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kshare_core.contexts import context_of_no_request
from kshare_upstream.port import ClusterView

UNDER_WAY_WAIT_MS = 50
"""More than a description of some thousand partitions takes, and little for who waits behind a broker that hangs."""


class SharedDescriptions:
    """`ask` describes some topics; what it raises is raised to all who share it."""

    def __init__(self, ask: Callable[[Sequence[str]], Awaitable[ClusterView]]) -> None:
        self._ask = ask
        self._under_way: dict[tuple[str, ...], asyncio.Task[ClusterView]] = {}
        """The newest one that was sent, by its topics."""
        self._next: dict[tuple[str, ...], asyncio.Task[ClusterView]] = {}
        """The one that is not sent yet."""
        self._tasks: set[asyncio.Task[ClusterView]] = set()

    async def describe(self, topics: Sequence[str]) -> ClusterView:
        """A description that is asked for after this call."""
        key = tuple(topics)
        task = self._next.get(key)
        if task is None:
            asking = self._ask_next(key, self._under_way.get(key))
            task = asyncio.get_running_loop().create_task(asking, context=context_of_no_request())
            self._next[key] = task
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Waits until all have their answer or error."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _ask_next(self, key: tuple[str, ...], before: asyncio.Task[ClusterView] | None) -> ClusterView:
        if before is not None:
            await asyncio.wait([before], timeout=UNDER_WAY_WAIT_MS / 1000)
        task = self._under_way[key] = self._next.pop(key)
        try:
            return await self._ask(key)
        finally:
            if self._under_way.get(key) is task:
                del self._under_way[key]

    def _ended(self, task: asyncio.Task[ClusterView]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # all who waited may have gone
