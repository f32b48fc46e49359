"""A name resolver that repeats queries early, because a query or its answer may get lost.

The C library repeats a query to a silent name server only after five seconds, and a restart of a container or pod makes
name servers silent for a moment. So `NameResolver` starts another query much earlier, beside the one in flight, and the
first answer counts. Each query runs in its own thread: a query that is no longer needed ends by itself, and delays
neither another query nor the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

ASKED_AGAIN_AFTER_MS = (500, 500, 1_000, 1_000, 1_000, 1_000)
"""How long each query is awaited before the next one starts; after the last wait the look-up fails.

While a look-up lasts, a container whose name servers were silent is found at most a second after they answer again.
"""
QUESTIONS_LIMIT = 64
"""Queries in flight at a time, for all names; above it no query is started."""

LookUp = Callable[[str, int], Sequence[str]]
"""A blocking look-up of a host's addresses: at least one, else OSError."""


def look_up(host: str, port: int) -> Sequence[str]:
    """The system's look-up (getaddrinfo), /etc/hosts included."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class NameResolver:
    """Resolves host names; owned by one event loop."""

    def __init__(self, look_up: LookUp = look_up, asked_again_after_ms: Sequence[int] = ASKED_AGAIN_AFTER_MS) -> None:
        self._look_up = look_up
        self._asked_again_after_ms = asked_again_after_ms
        self._questions = 0

    async def addresses_of(self, host: str, port: int) -> Sequence[str]:
        """The addresses without duplicates, the preferred one first.

        OSError if the name has none, TimeoutError if no query was answered in time.
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
        raise TimeoutError(f"no response of the name server for {host} within {sum(self._asked_again_after_ms)} ms")

    def _ask(self, host: str, port: int, answer: asyncio.Future[Sequence[str]]) -> None:
        """Runs one query, in its own thread."""
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
