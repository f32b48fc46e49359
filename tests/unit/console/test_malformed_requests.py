"""Requests that no browser sends: each is refused with a status below 500, and the log has no traceback."""

from __future__ import annotations

import asyncio
import time

import pytest

from kshare_console.actions import Actions
from kshare_console.http.application import Application
from kshare_console.http.listener import Listener
from kshare_console.http.view_routes import ViewRoutes
from kshare_console.live import LiveViews
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import Viewers
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_upstream.connection import BrokerAddress
from support.environment.free_ports import free_port

pytestmark = pytest.mark.timeout(30)

DRAIN = "POST /api/placement/drain"
SIGN_IN = "POST /api/session"
JSON = b"Content-Type: application/json\r\n"


def application(*, needs_sign_in: bool) -> tuple[Application, Viewers]:
    """A console in front of a cluster that does not answer."""
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} if needs_sign_in else {}
    roles = RoleCalls(InProcessNetwork(), ["nobody:1"])
    bootstrap = [BrokerAddress("127.0.0.1", free_port())]
    viewers = Viewers(bootstrap, properties, None, roles, time.monotonic, lambda: 0)
    console = Application(
        viewers=viewers,
        views=ViewRoutes(roles),
        live=LiveViews(1),
        actions=Actions(roles, 1, is_allowed=True),
        files={},
        names=(),
        is_https=False,
    )
    return console, viewers


async def status_of(port: int, request: str, headers: bytes, body: bytes) -> int:
    """The status of one request, whose bytes are sent as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{request} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + headers + b"\r\n" + body)
    line = await reader.readline()
    await reader.read()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("request_line", "headers", "body", "needs_sign_in", "wanted"),
    [
        pytest.param(SIGN_IN, JSON + b"Origin: http://[\r\n", b"{}", True, 403, id="an origin that is no URL"),
        pytest.param(DRAIN, JSON + b"Origin: http://[\r\n", b"{}", False, 403, id="an origin at an action"),
        pytest.param(SIGN_IN, JSON, b'{"username":"x\\ud800","password":"y"}', True, 400, id="a surrogate in a name"),
        pytest.param(SIGN_IN, JSON, b'{"username":"x","password":"\\udfff"}', True, 400, id="one in a password"),
        pytest.param(SIGN_IN, JSON, b'{"username":"\xed\xa0\x80","password":""}', True, 400, id="its bytes"),
        pytest.param(DRAIN, JSON + b"X-Kshare-Csrf: \xff\xfe\r\n", b"{}", False, 403, id="a token that is no UTF-8"),
        pytest.param(SIGN_IN, JSON + b"Cookie: kshare_console=\xff\r\n", b"{}", True, 400, id="such a cookie"),
        pytest.param(SIGN_IN, JSON + b"Content-Encoding: gzip\r\n", b"no gzip", True, 400, id="a body that is no gzip"),
        pytest.param(SIGN_IN, JSON, b"[" * 60_000, True, 400, id="arrays in arrays"),
        pytest.param(SIGN_IN, b"Content-Type: \xff\r\n", b"{}", True, 415, id="a type that is no UTF-8"),
        pytest.param("GET /api/groups/%ff%ed%a0%80", b"", b"", True, 401, id="a path that is no UTF-8"),
    ],
)
def test_a_malformed_request_is_refused(
    request_line: str,
    headers: bytes,
    body: bytes,
    needs_sign_in: bool,
    wanted: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        console, viewers = application(needs_sign_in=needs_sign_in)
        listener = Listener(console.web, connections_limit=1)
        port = await listener.start("127.0.0.1", 0, None)
        try:
            assert await status_of(port, request_line, headers, body) == wanted
        finally:
            await listener.stop(grace_ms=0)
            await viewers.close()

    asyncio.run(test())
    assert not [record for record in caplog.records if record.exc_info]
