"""fdatasync beside the event loop: by io_uring, else by a thread of this process.

An event loop that calls fdatasync answers no client until the call returns. On a machine whose processors are all
busy, the process is scheduled again only 1 to 4 ms after the disk has finished, so a loop that syncs every write falls
behind.

Who syncs decides how long it takes there. The threads of io_uring belong to this process and inherit its short slices
(`kshare_fastpath.scheduling`): beside two busy processes a sync takes 0.1 to 0.2 ms, as without them. A Python thread
inherits them too, and needs the interpreter's lock besides. Sandboxes often refuse io_uring, as Docker's and
containerd's default seccomp profiles do. Linux AIO is not used: its threads are the kernel's own and wait for a whole
slice of a process that computes, 3 ms in the median (docs/internals/performance.md).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from caio import AbstractOperation

try:
    from caio.linux_uring import Context as RingContext
    from caio.linux_uring import Operation as RingOperation
except ImportError:  # another operating system, or this one refuses
    HAS_RINGS = False
else:
    HAS_RINGS = True

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
    if HAS_RINGS:
        with suppress(OSError, SystemError, ValueError, RuntimeError):
            return RingSync(loop)
    return ThreadSync(loop)


class RingSync:
    """Syncs by io_uring; OSError or another error of `caio` where the kernel refuses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring = RingContext(1)
        self._operation: AbstractOperation | None = None
        self._ended: Ended | None = None
        self._is_beginning = False
        loop.add_reader(self._ring.fileno, self._collect)

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

    def _submit(self, descriptor: int) -> bool:
        """Begins the sync; whether the kernel took it."""
        operation = RingOperation.fdsync(descriptor)
        operation.set_callback(self._completed)
        self._operation = operation  # the kernel writes into it
        is_taken = self._ring.submit(operation) == 1
        self._ring.flush()
        return is_taken

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._ring.fileno)
        self._ended = None

    def _collect(self) -> None:
        with suppress(BlockingIOError):  # an earlier look has found it already
            self._ring.poll()
        self._ring.process_events()

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


class ThreadSync:
    """Syncs by a thread of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: Ended | None = None
        self._descriptors: SimpleQueue[int | None] = SimpleQueue()
        """What the thread is to sync; None ends it."""
        threading.Thread(target=self._run, name="log-sync", daemon=True).start()

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None, "one sync at a time"
        self._ended = ended
        self._descriptors.put(descriptor)

    def close(self) -> None:
        self._ended = None
        self._descriptors.put(None)

    def _run(self) -> None:
        while (descriptor := self._descriptors.get()) is not None:
            try:
                os.fdatasync(descriptor)
            except OSError:
                is_durable = False
            else:
                is_durable = True
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._completed, is_durable)

    def _completed(self, is_durable: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(is_durable)
