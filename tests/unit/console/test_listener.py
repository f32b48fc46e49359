"""At which addresses the console listens."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from kshare_console.http.listener import Listener


async def _answer(_request: web.Request) -> web.Response:
    return web.Response(text="the console")


def test_the_console_is_served_at_every_address_of_both_families() -> None:
    """asyncio's socket at [::] would take connections of IPv6 only, and that at 0.0.0.0 of IPv4 only."""

    async def main() -> None:
        for listen, hosts in (("[::]", ("127.0.0.1", "[::1]")), ("[::1]", ("[::1]",)), ("127.0.0.1", ("127.0.0.1",))):
            application = web.Application()
            application.router.add_get("/", _answer)
            listener = Listener(application, connections_limit=10)
            port = await listener.start(listen, 0, None)
            async with aiohttp.ClientSession() as session:
                for host in hosts:
                    async with session.get(f"http://{host}:{port}/") as response:
                        assert await response.text() == "the console"
            await listener.stop(0)

    asyncio.run(main())
