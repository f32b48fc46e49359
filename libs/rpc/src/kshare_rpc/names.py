"""Look-ups of host names, which the C library repeats each second where a name server is silent.

By default it repeats a query after five seconds only, and a restart of a container or pod makes name servers silent for
a moment. The resolver's own option shortens that: a name whose server was silent for 0.3 and 2.5 s was found after 1.0
and 3.0 s, without it after 5.0 s.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

RESOLVER_OPTIONS = "timeout:1 attempts:5"
"""See resolv.conf(5): seconds until a query is repeated, and how often."""
LOOK_UP_TIMEOUT_S = 6.0

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, the preferred one first: at least one, else OSError or TimeoutError."""


def repeat_queries_early() -> None:
    """Sets the options for this process, unless its environment has some; to be called before the first look-up."""
    os.environ.setdefault("RES_OPTIONS", RESOLVER_OPTIONS)


async def look_up(host: str, port: int) -> Sequence[str]:
    """The system's look-up (getaddrinfo), /etc/hosts included."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
