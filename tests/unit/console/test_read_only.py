"""Without `--console-admin` no route changes anything. The routes are the console's own, so a new one is among them."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kshare_console.actions import Actions
from kshare_console.http.application import UNSAFE, Application
from kshare_console.http.guards import CSRF_HEADER
from kshare_console.http.view_routes import ViewRoutes
from kshare_console.live import LiveViews
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import Viewers
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_upstream.connection import BrokerAddress
from support.environment.free_ports import free_port

SESSION = "/api/session"
"""Signing in and out changes nothing but the browser's session."""
NAMES = {"{group}": "billing", "{topic}": "orders", "{partition}": "0"}
BODIES: tuple[object, ...] = (
    {"confirmed": True},
    {
        "confirmed": True,
        "first_offset": 0,
        "last_offset": 9,
        "configs": {"a": "b"},
        "role": "leader",
        "name": "leader-1",
    },
    {},
    [],
)


def application(*, is_admin: bool) -> tuple[Application, Viewers]:
    """A console without sign-in, in front of a cluster that does not answer."""
    roles = RoleCalls(InProcessNetwork(), ["nobody:1"])
    bootstrap = [BrokerAddress("127.0.0.1", free_port())]
    viewers = Viewers(bootstrap, {}, None, roles, time.monotonic, lambda: time.time_ns() // 1_000_000)
    console = Application(
        viewers=viewers,
        views=ViewRoutes(roles),
        live=LiveViews(1),
        actions=Actions(roles, 1, is_allowed=is_admin),
        files={},
        names=(),
        is_https=False,
    )
    return console, viewers


def actions_of(console: Application) -> list[tuple[str, str]]:
    """Method and path, with names filled in, of every route that is no reading."""
    found = []
    for route in console.web.router.routes():
        assert route.resource is not None
        template = route.resource.canonical
        assert route.method in ("GET", "HEAD", *UNSAFE), f"{route.method} {template} is neither reading nor refused"
        if route.method in UNSAFE and template != SESSION:
            found.append((route.method, re.sub(r"\{\w+\}", lambda name: NAMES[name.group()], template)))
    return found


@pytest.mark.parametrize("is_admin", [False, True])
def test_every_route_that_changes_something_is_refused_by_a_read_only_console(is_admin: bool) -> None:
    async def test() -> None:
        console, viewers = application(is_admin=is_admin)
        routes = actions_of(console)
        assert len(routes) >= 5
        async with TestClient(TestServer(console.web)) as browser:
            headers = {CSRF_HEADER: (await viewers.find("")).csrf_token}
            for method, path in routes:
                for body in BODIES:
                    answer = await browser.request(method, path, json=body, headers=headers)
                    code = (await answer.json())["code"]
                    is_refused = (answer.status, code) == (403, "READ_ONLY")
                    assert is_refused is not is_admin, f"{method} {path} {body}: {answer.status} {code}"

        await viewers.close()

    asyncio.run(test())
