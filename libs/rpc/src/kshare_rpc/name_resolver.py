"""The addresses of a host's name, although a question or its answer may get lost.

The C library asks a silent name server again after five seconds, and a container or a pod that is started again makes
name servers silent for a moment. So `NameResolver` asks again much earlier, beside the question that is under way, and
the first answer counts. Questions run in threads of their own: one that nobody needs any more ends by itself, and keeps
neither another nor the end of the process waiting.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

ASKED_AGAIN_AFTER_MS = (500, 1_500, 3_000)
"""How long one question is waited for before there is another one; after the last there is none more."""
QUESTIONS_LIMIT = 32
"""Under way at a time, of all names; above it nothing is asked again."""

LookUp = Callable[[str, int], Sequence[str]]
"""The addresses of a host, of which there is at least one; blocks, and raises OSError where there is none."""


def look_up(host: str, port: int) -> Sequence[str]:
    """As the system does it, /etc/hosts included."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class NameResolver:
    """Owned by one event loop."""

    def __init__(self, look_up: LookUp = look_up, asked_again_after_ms: Sequence[int] = ASKED_AGAIN_AFTER_MS) -> None:
        self._look_up = look_up
        self._asked_again_after_ms = asked_again_after_ms
        self._questions = 0

    async def addresses_of(self, host: str, port: int) -> Sequence[str]:
        """Without duplicates, the preferred one first.

        OSError where the name has none, TimeoutError where no question was answered in time.
        """
        answer: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        try:
            for wait_ms in self._asked_again_after_ms:
                if self._questions < QUESTIONS_LIMIT:
                    self._questions += 1
                    Thread(target=self._ask, args=(host, port, answer), name=f"resolve-{host}", daemon=True).start()
                await asyncio.wait({answer}, timeout=wait_ms / 1000)
                if answer.done():
                    return answer.result()
        finally:
            answer.cancel()
        raise TimeoutError(f"no answer for the name {host} in {sum(self._asked_again_after_ms)} ms")

    def _ask(self, host: str, port: int, answer: asyncio.Future[Sequence[str]]) -> None:
        """In a thread of its own."""
        found: Sequence[str] = ()
        failure: OSError | None = None
        try:
            found = self._look_up(host, port)
        except OSError as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            answer.get_loop().call_soon_threadsafe(self._answered, answer, found, failure)

    def _answered(self, answer: asyncio.Future[Sequence[str]], found: Sequence[str], failure: OSError | None) -> None:
        self._questions -= 1
        if answer.done():
            return
        if failure is None:
            answer.set_result(found)
        else:
            answer.set_exception(failure)
