"""A scheduler for long work on an event loop: slices of bounded length, one slice per turn of the loop.

A request may name 200,000 elements, and a catalog may have 100,000 partitions. Work on all of them in one piece would
block every connection of the process. Such work calls `next_slice` after every SLICE_ELEMENTS elements, and continues
after all other work that waits for a slice has had one. One slice runs per turn of the loop, however many requests have
long work to do, so that the sockets are served between two slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

SLICE_ELEMENTS = 500
"""Elements (of a request, an answer or the catalog) in one slice; each costs a few microseconds."""

Element = TypeVar("Element")
Result = TypeVar("Result")


class WorkAbandoned(Exception):
    """The result of the work is no longer needed."""


def _is_wanted() -> bool:
    return True


class WorkSlices:
    """The queue for slices of one event loop; see the module's text.

    `slices` counts the granted slices.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting: asyncio.Handle | None = None
        self.slices = 0

    async def next_slice(self, is_wanted: Callable[[], bool] = _is_wanted) -> None:
        """Returns in a later turn of the loop; WorkAbandoned if the result is no longer wanted by then."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._granting is None:
            self._granting = loop.call_soon(self._grant)
        await future
        if not is_wanted():
            raise WorkAbandoned("the connection of the request was closed")

    async def run(self, steps: Generator[None, None, Result], is_wanted: Callable[[], bool] = _is_wanted) -> Result:
        """Runs work that yields after each slice; the first slice runs at once."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            await self.next_slice(is_wanted)

    def _grant(self) -> None:
        self._granting = None
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                self.slices += 1
                future.set_result(None)
                # The slice runs before this is called again, because its task was scheduled first.
                self._granting = asyncio.get_running_loop().call_soon(self._grant)
                return


class ElementCount:
    """A counter of the elements that one loop has processed, which ends its slice after SLICE_ELEMENTS.

    count = context.count_elements()
    for element in elements:
        if count.add():
            await count.next_slice()
    """

    __slots__ = ("_elements", "_is_wanted", "_slices")

    def __init__(self, slices: WorkSlices, is_wanted: Callable[[], bool] = _is_wanted) -> None:
        self._slices = slices
        self._is_wanted = is_wanted
        self._elements = 0

    def add(self, elements: int = 1) -> bool:
        """Counts elements; returns whether the slice is over."""
        self._elements += elements
        return self._elements >= SLICE_ELEMENTS

    async def next_slice(self) -> None:
        """As `WorkSlices.next_slice`."""
        self._elements = 0
        await self._slices.next_slice(self._is_wanted)


def portions(elements: Iterable[Element], size: int = SLICE_ELEMENTS) -> Iterator[list[Element]]:
    """The elements in lists of at most `size`."""
    portion: list[Element] = []
    for element in elements:
        portion.append(element)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
