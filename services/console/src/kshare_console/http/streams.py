"""Server-sent events: the messages of a live view, and a sign of life now and then.

The sign is the event `alive`, since a browser tells a page nothing of comments. Without it a page could not tell
figures that do not change from a connection that is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from aiohttp import web

from kshare_console.http.guards import HEADERS
from kshare_console.live import Message

RETRY_MS = 2_000
ALIVE_S = 5.0
WRITE_TIMEOUT_S = 30.0
"""A viewer that takes nothing for so long is gone."""


async def send_stream(
    request: web.Request, messages: AsyncGenerator[Message, None], *, is_open: Callable[[], bool]
) -> web.StreamResponse:
    """Sends messages until the viewer is gone or its session has ended; Refusal before the first one."""
    async with aclosing(messages):
        first = await anext(messages)
        answer = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await answer.prepare(request)
        await _write(answer, f"retry: {RETRY_MS}\n\n{_event(first)}")
        following = asyncio.ensure_future(anext(messages))
        try:
            while is_open():
                done, _ = await asyncio.wait([following], timeout=ALIVE_S)
                if not done:
                    await _write(answer, _event(Message("alive", "{}")))
                    continue
                message = following.result()
                following = asyncio.ensure_future(anext(messages))
                await _write(answer, _event(message))
        except (ConnectionError, TimeoutError, StopAsyncIteration):
            pass  # the viewer is gone, or the console stops
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return answer


async def _write(answer: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await answer.write(text.encode())


def _event(message: Message) -> str:
    return f"event: {message.event}\ndata: {message.data}\n\n"
