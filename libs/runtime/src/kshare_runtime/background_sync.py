"""fdatasync beside the event loop: by the kernel's own threads (Linux AIO), else by a thread of this process.

An event loop that calls fdatasync answers no client until the call returns. On a machine whose processors are all
busy, the process is scheduled again only 1 to 4 ms after the disk has finished, so a loop that syncs every write falls
behind. A sync by the kernel's threads takes as long as one in the loop; a Python thread adds 30 microseconds, because
it needs the interpreter's lock (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from caio import AbstractOperation

try:
    from caio.linux_aio import Context, Operation
except ImportError:  # another operating system
    HAS_KERNEL_SYNC = False
else:
    HAS_KERNEL_SYNC = True

Ended = Callable[[bool], None]
"""Called by the event loop with whether the file is durable up to what had been written when the sync began."""


class BackgroundSync(Protocol):
    """Syncs one file at a time."""

    def begin(self, descriptor: int, ended: Ended) -> None:
        """Syncs a file; no other sync may be under way."""
        ...

    def close(self) -> None:
        """Gives up a sync that is under way: `ended` is not called any more."""
        ...


def background_sync(loop: asyncio.AbstractEventLoop) -> BackgroundSync:
    """The kernel's, where it lets this process; containers with a narrow seccomp profile do not."""
    if HAS_KERNEL_SYNC:
        try:
            return KernelSync(loop)
        except (OSError, SystemError, ValueError, RuntimeError):
            pass
    return ThreadSync(loop)


class KernelSync:
    """Syncs by Linux AIO; OSError or another error of `caio` where the kernel refuses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = Context(1)
        self._operation: AbstractOperation | None = None
        self._ended: Ended | None = None
        loop.add_reader(self._context.fileno, self._collect)

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None, "one sync at a time"
        self._ended = ended
        operation = Operation.fdsync(descriptor)
        operation.set_callback(self._completed)
        self._operation = operation  # the kernel writes into it
        try:
            is_taken = self._context.submit(operation) == 1
        except (OSError, ValueError, RuntimeError, SystemError):  # the file system has no AIO
            is_taken = False
        if not is_taken:
            self._loop.call_soon(self._end, False)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._context.fileno)
        self._ended = None

    def _collect(self) -> None:
        with suppress(BlockingIOError):  # an earlier look has found it already
            self._context.poll()
        self._context.process_events()

    def _completed(self, result: int) -> None:
        assert self._operation is not None
        try:
            self._operation.get_value()
        except Exception:  # caio has an exception of its own for some errors
            self._end(False)
            return
        self._end(result >= 0)

    def _end(self, is_durable: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(is_durable)


class ThreadSync:
    """Syncs by a thread of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, "log-sync")
        self._ended: Ended | None = None

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None, "one sync at a time"
        self._ended = ended
        self._loop.run_in_executor(self._executor, os.fdatasync, descriptor).add_done_callback(self._completed)

    def close(self) -> None:
        self._ended = None
        self._executor.shutdown(wait=False)

    def _completed(self, future: asyncio.Future[None]) -> None:
        is_durable = not future.cancelled() and future.exception() is None
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(is_durable)
