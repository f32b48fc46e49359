"""A Future with a listener that runs synchronously when the Future is done.

Waiters of an asyncio.Future resume in the event loop's next turn. Where a result is only passed on, from a durable
write to the answer of a call, each such turn is needless latency.

What breaks if it is wrong: an answer that is never sent, or code that runs inside the call that completed the Future
and changes what that call still works with. The switch is prompt_future: without it the listener is a done callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kshare_fastpath.switches import is_on

_IS_ON = is_on("prompt_future")
Result = TypeVar("Result")
Listener = Callable[[Any], object]


class PromptFuture(asyncio.Future[Result]):
    """A Future with at most one listener, which the completing code calls, before awaiting tasks resume.

    An exception of the listener goes to the event loop's exception handler; the completing code does not see it.
    """

    _is_heard = False
    _listener: Listener | None = None
    """Dropped when it was called: it often refers to the Future, and such a cycle is left to the garbage collector."""

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with this Future when it is done, or at once if it already is."""
        assert not self._is_heard, "a PromptFuture has one listener"
        self._is_heard = True
        if not _IS_ON:
            self.add_done_callback(listener)
            return
        self._listener = listener
        if self.done():
            self._tell()

    def set_result(self, result: Result) -> None:
        super().set_result(result)
        if self._listener is not None:
            self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        if self._listener is not None:
            self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled and self._listener is not None:
            self._tell()
        return is_cancelled

    def complete(self, make: Callable[[], Result]) -> None:
        """Sets what `make` returns or raises, unless it is done: then a server that stops has given the call up."""
        if self.done():
            return
        try:
            result = make()
        except (Exception, asyncio.CancelledError) as failure:
            self.set_exception(failure)
        else:
            self.set_result(result)

    def _tell(self) -> None:
        listener, self._listener = self._listener, None
        assert listener is not None
        try:
            listener(self)
        except Exception as error:
            context = {"message": "a listener failed", "exception": error, "future": self}
            self.get_loop().call_exception_handler(context)


def when_ended(future: asyncio.Future[Any], listener: Listener) -> None:
    """Calls `listener` with the Future when it is done: synchronously for a PromptFuture, else as a callback."""
    if isinstance(future, PromptFuture):
        future.listen(listener)
    else:
        future.add_done_callback(listener)


def when_all_ended(futures: Sequence[asyncio.Future[Any]], listener: Callable[[], object]) -> None:
    """Calls `listener` when all the Futures are done; at once if there are none.

    Their exceptions count as retrieved: a listener whose call was given up does not ask for them.
    """
    left = len(futures)

    def ended(future: asyncio.Future[Any]) -> None:
        nonlocal left
        if not future.cancelled():
            future.exception()
        left -= 1
        if not left:
            listener()

    for future in futures:
        when_ended(future, ended)
    if not futures:
        listener()
