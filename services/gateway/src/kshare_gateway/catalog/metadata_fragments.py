"""Cache of encoded parts of Metadata responses, valid while their source is unchanged.

A catalog of 100,000 partitions takes about a second to encode. The topics part of a response depends only on the
catalog, the request's version and the client's listener. So it is encoded once, in slices, and shared by all responses
until the catalog changes. Requests that arrive during the encoding wait for the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from kshare_wire.messages import EncodedArray, Struct

AnElement = TypeVar("AnElement", bound=Struct)

FRAGMENTS_LIMIT_BYTES = 32 * 1024 * 1024
"""Limit of all fragments together; beyond it the oldest are dropped."""


class MetadataFragments:
    """The fragment cache. `built` counts the fragments that were encoded."""

    def __init__(self) -> None:
        self._fragments: dict[Hashable, tuple[object, asyncio.Task[EncodedArray[Any]]]] = {}
        self.built = 0

    async def get(
        self, key: Hashable, source: object, build: Callable[[], Coroutine[Any, Any, EncodedArray[AnElement]]]
    ) -> EncodedArray[AnElement]:
        """The fragment of `key`; `build` makes it unless one of the same `source` object is cached."""
        found = self._fragments.get(key)
        if found is None or found[0] is not source or _has_failed(found[1]):
            self.built += 1
            task = asyncio.get_running_loop().create_task(build(), name="metadata")
            found = self._fragments[key] = (source, task)
        result = await asyncio.shield(found[1])
        self._forget_oldest()
        return result

    @property
    def size_bytes(self) -> int:
        return sum(len(task.result().data) for _, task in self._fragments.values() if _has_result(task))

    def _forget_oldest(self) -> None:
        size = self.size_bytes
        for key, (_, task) in list(self._fragments.items()):
            if size <= FRAGMENTS_LIMIT_BYTES:
                return
            if _has_result(task):
                size -= len(task.result().data)
                del self._fragments[key]


def _has_failed(task: asyncio.Task[EncodedArray[Any]]) -> bool:
    return task.done() and not _has_result(task)


def _has_result(task: asyncio.Task[EncodedArray[Any]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
