"""Who may read /metrics."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.configs import process_configs
from kshare_servicekit.metrics_server import Metrics

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
TOKEN = {"kshare.metrics.bearer.token": "secret"}


@pytest.mark.parametrize(
    ("texts", "headers", "status"),
    [
        ({}, [], b"200"),
        ({}, ["Authorization: Bearer anything"], b"200"),
        (AUTHORIZER, [], b"401"),
        (AUTHORIZER, ["Authorization: Bearer"], b"401"),
        (AUTHORIZER, ["Authorization: Bearer "], b"401"),
        (TOKEN, [], b"401"),
        (TOKEN, ["Authorization: Bearer secre"], b"401"),
        (TOKEN, ["Authorization: Basic secret"], b"401"),
        (TOKEN, ["X-Authorization: Bearer secret"], b"401"),
        (TOKEN, ["Authorization: Bearer wrong", "Authorization: Bearer secret"], b"401"),
        (TOKEN, ["Host: here", "authorization:   Bearer secret"], b"200"),
        ({**AUTHORIZER, **TOKEN}, ["Authorization: Bearer secret"], b"200"),
    ],
)
def test_a_scrape_shows_the_token(texts: dict[str, str], headers: list[str], status: bytes) -> None:
    async def scrape() -> bytes:
        metrics = Metrics()
        metrics.require_token(process_configs(texts)[0])
        host, _, port = (await metrics.serve("127.0.0.1:0")).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write("\r\n".join(["GET /metrics HTTP/1.1", *headers, "", ""]).encode())
        answer = await reader.read()
        writer.close()
        await metrics.stop()
        return answer

    answer = asyncio.run(scrape())
    assert answer.split(b" ")[1] == status
    assert (b"process_cpu_seconds_total" in answer) is (status == b"200")
