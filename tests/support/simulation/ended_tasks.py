"""Exceptions of background tasks that no code ever looked at.

A role that starts a task and keeps it in an attribute does not notice when the task ends by an exception: asyncio
reports such an exception only when the task is destroyed, which is at the end of the process. In the simulation it
fails the seed. Each task is judged when its host is asked to stop, because a `stop` often throws the results of its
tasks away, and at the end of the run.

No exception is noted of a task whose end its awaiter has not heard of yet: the callback is scheduled, or waits in a
host that is dead or paused. The awaiter of a dead or paused host may also have been elsewhere, and would have looked at
the task later; and tests send requests on no host whose senders have given up. There only exceptions that no code
expects are noted: those of Python's own classes.
"""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest.mock import patch

AnyTask = asyncio.Task[object]


class Life(Protocol):
    """A life of a host."""

    @property
    def stopped(self) -> bool: ...

    @property
    def deferred(self) -> list[asyncio.Handle]: ...


class EndedTasks:
    """The tasks of one loop, with the lives that they belong to; exceptions of the class `ignored` are none."""

    def __init__(self, ignored: type[BaseException]) -> None:
        self._ignored = ignored
        self._lives: weakref.WeakKeyDictionary[AnyTask, Life | None] = weakref.WeakKeyDictionary()

    def add(self, task: AnyTask, life: Life | None) -> None:
        self._lives[task] = life

    def unseen(self, ready: Iterable[asyncio.Handle], life: Life | None = None) -> list[str]:
        """Exceptions that were not retrieved so far, of one life or of all, each once. `ready`: the loop's handles."""
        found: dict[str, None] = {}
        heard: set[int] | None = None
        for task, of_task in list(self._lives.items()):
            error = self._error(task)
            if error is None or (life is not None and of_task is not life):
                continue
            if heard is None:
                heard = self._waiting_for_callbacks(ready)
            is_left = of_task is None or of_task.stopped
            if id(task) in heard or (is_left and not is_bug(error)):
                continue
            task._log_traceback = False
            found[f"{of_task}: the task {task.get_name()!r} ended by an exception: {error!r}"] = None
        return sorted(found)

    def _error(self, task: AnyTask) -> BaseException | None:
        """The exception of a task that ended by one which nobody looked at."""
        if not task.done() or not task._log_traceback:
            return None
        error: BaseException | None = task._exception
        return None if isinstance(error, self._ignored) else error

    def _waiting_for_callbacks(self, ready: Iterable[asyncio.Handle]) -> set[int]:
        """The ids of the futures whose ends are known to a callback that has not run."""
        lives = {id(life): life for life in self._lives.values() if life is not None}
        handles = [*ready, *(handle for life in lives.values() for handle in life.deferred)]
        return {
            id(argument)
            for handle in handles
            for argument in handle._args or ()
            if isinstance(argument, asyncio.Future)
        }


def is_bug(error: BaseException) -> bool:
    """Whether no code expects it: a class of Python's own, but not one by which systems and networks fail."""
    if isinstance(error, OSError | StopAsyncIteration):
        return False
    return type(error).__module__ == builtins.__name__


@contextmanager
def watched_gathers(note: Callable[[str], None]) -> Iterator[None]:
    """While it is entered, `note` gets every bug among the results of `asyncio.gather(..., return_exceptions=True)`.

    Its callers, most of them in a `stop`, throw the results away, and asyncio then counts the exceptions as seen.
    """
    gather = asyncio.gather

    def look(gathered: asyncio.Future[list[object]]) -> None:
        if gathered.cancelled() or gathered.exception() is not None:
            return  # it was cancelled, which asyncio may report as an exception
        for result in gathered.result():
            if isinstance(result, BaseException) and is_bug(result):
                note(f"a task that was gathered ended by an exception: {result!r}")

    def watched(*awaitables: Any, return_exceptions: bool = False) -> Any:
        gathered = gather(*awaitables, return_exceptions=return_exceptions)
        if return_exceptions:
            gathered.add_done_callback(look, context=contextvars.Context())  # of no host: it does not shift its steps
        return gathered

    with patch.object(asyncio, "gather", watched):
        yield
