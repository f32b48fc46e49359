"""Futures that tell when they end in the moment when they end.

What waits for an asyncio.Future goes on in the event loop's next turn. Where a result only has to be handed on, from a
write that is durable to the answer of a call, each of those turns makes the caller wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
Listener = Callable[[Any], object]


class PromptFuture(asyncio.Future[Result]):
    """A Future with at most one listener, called by whoever ends it, before those that await it go on.

    A listener that raises is the event loop's exception handler's to report; who ended the Future does not see it.
    """

    _listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with this Future when it ends, at once if it has."""
        assert self._listener is None, "a PromptFuture has one listener"
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

    def _tell(self) -> None:
        assert self._listener is not None
        try:
            self._listener(self)
        except Exception as error:
            context = {"message": "a listener failed", "exception": error, "future": self}
            self.get_loop().call_exception_handler(context)


def when_ended(future: asyncio.Future[Any], listener: Listener) -> None:
    """Calls `listener` with the Future when it ends, as soon as its kind allows."""
    if isinstance(future, PromptFuture):
        future.listen(listener)
    else:
        future.add_done_callback(listener)
