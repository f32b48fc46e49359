"""fdatasync beside the event loop: by io_uring, else by Linux AIO, else by a thread of this process.

An event loop that calls fdatasync answers no client until the call returns. On a machine whose processors are all
busy, the process is scheduled again only 1 to 4 ms after the disk has finished, so a loop that syncs every write falls
behind.

Who syncs decides how long it takes there. The threads of io_uring belong to this process and inherit its short slices
(`kshare_fastpath.scheduling`): beside two busy processes a sync takes 0.1 to 0.2 ms, as without them. Those of Linux
AIO are the kernel's own and wait for a whole slice of whoever computes, 3 ms in the median. A Python thread needs the
interpreter's lock twice (docs/performance.md). Sandboxes often refuse io_uring, as Docker's and containerd's default
seccomp profiles do.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from caio import AbstractOperation

try:
    from caio.linux_uring import Context as RingContext
    from caio.linux_uring import Operation as RingOperation
except ImportError:  # another operating system, or this one refuses
    HAS_RINGS = False
else:
    HAS_RINGS = True
try:
    from caio.linux_aio import Context as KernelContext
    from caio.linux_aio import Operation as KernelOperation
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
    """The quickest that the system lets this process have."""
    for kind, is_there in ((RingSync, HAS_RINGS), (KernelSync, HAS_KERNEL_SYNC)):
        if is_there:
            with suppress(OSError, SystemError, ValueError, RuntimeError):
                return kind(loop)
    return ThreadSync(loop)


class _Context(Protocol):
    """A context of `caio` whose descriptor becomes readable when an operation has ended."""

    @property
    def fileno(self) -> int: ...

    def poll(self) -> int: ...

    def process_events(self) -> int: ...


class _DescriptorSync(ABC):
    """Syncs whose end makes a descriptor of `context` readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: _Context) -> None:
        self._loop = loop
        self._context = context
        self._operation: AbstractOperation | None = None
        self._ended: Ended | None = None
        self._is_beginning = False
        loop.add_reader(context.fileno, self._collect)

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None, "one sync at a time"
        self._ended = ended
        self._is_beginning = True  # it may end at once, and the caller is told later all the same
        try:
            is_taken = self._submit(descriptor)
        except (OSError, ValueError, RuntimeError, SystemError):  # the file system has none of it
            is_taken = False
        self._is_beginning = False
        if not is_taken:
            self._loop.call_soon(self._end, False)

    @abstractmethod
    def _submit(self, descriptor: int) -> bool:
        """Begins the sync; whether the kernel took it."""

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
            is_durable = False
        else:
            is_durable = result >= 0
        if self._is_beginning:
            self._loop.call_soon(self._end, is_durable)
        else:
            self._end(is_durable)

    def _end(self, is_durable: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(is_durable)


class RingSync(_DescriptorSync):
    """Syncs by io_uring; OSError or another error of `caio` where the kernel refuses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ring = RingContext(1)
        super().__init__(loop, self._ring)

    def _submit(self, descriptor: int) -> bool:
        operation = RingOperation.fdsync(descriptor)
        operation.set_callback(self._completed)
        self._operation = operation  # the kernel writes into it
        is_taken = self._ring.submit(operation) == 1
        self._ring.flush()
        return is_taken


class KernelSync(_DescriptorSync):
    """Syncs by Linux AIO; OSError or another error of `caio` where the kernel refuses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._aio = KernelContext(1)
        super().__init__(loop, self._aio)

    def _submit(self, descriptor: int) -> bool:
        operation = KernelOperation.fdsync(descriptor)
        operation.set_callback(self._completed)
        self._operation = operation  # the kernel writes into it
        return self._aio.submit(operation) == 1


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
