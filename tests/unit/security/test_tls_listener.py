"""A gateway's TLS listener on real sockets, with asyncio's loop and uvloop's: limits, time, hostile bytes, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kshare_core.configs import process_configs
from kshare_gateway.connections import tls_listener
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from support.clients.raw_kafka import framed, header
from support.environment.certificates import Authority
from support.gateway.harness import COORDINATOR, GatewayHarness, environment

AUTHORITY = Authority("kshare")
LOOPS = {"asyncio": None, "uvloop": uvloop.new_event_loop}

Scenario = Callable[["Listening"], Awaitable[None]]


class Listening:
    """A started gateway with a PLAINTEXT and an SSL listener, and who connects to it."""

    def __init__(self, harness: GatewayHarness, node: GatewayNode) -> None:
        self.harness = harness
        self.node = node
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def port(self) -> int:
        return next(each.port for each in self.registered.listeners if each.name == "SSL")

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = next(each.port for each in self.registered.listeners if each.name == "PLAINTEXT")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        return reader, writer

    @property
    def registered(self) -> coordinator_pb2.Node:
        """What the gateway said of itself."""
        assert self.harness.catalog.gateway is not None
        return self.harness.catalog.gateway

    async def raw(self, **tls: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **tls)
        self._writers.append(writer)
        return reader, writer

    async def encrypted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        return await self.raw(ssl=context, server_hostname="localhost")

    async def close(self) -> None:
        """Ends what the test left open."""
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), 10)
        await self.until(lambda: self.now == (0, 0))

    @property
    def now(self) -> tuple[int, int]:
        """Handshakes under way, and clients."""
        return self.node._tls_listeners["SSL"].handshakes, len(self.node._connections)

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not wanted():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(
    folder: Path, texts: dict[str, str], altered: dict[str, str] | None = None
) -> AsyncIterator[Listening]:
    """`altered` has the broker configs that an administrator altered before the gateway starts."""
    path = AUTHORITY.issue("localhost").write_combined(folder / "server.pem")
    configs, _ = process_configs(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(path),
            **texts,
        }
    )
    async with GatewayHarness() as harness:
        harness.catalog.broker_configs["9"] = altered or {}
        settings = GatewaySettings(
            node_id=9,
            client_listen="",
            advertised_host="",
            advertised_port=0,
            coordinator_address=COORDINATOR,
            configs=configs,
            listeners=configured_listeners(configs, lambda: "own"),
        )
        node = GatewayNode(environment=environment(), network=harness.network, settings=settings)
        await node.start()
        found = Listening(harness, node)
        try:
            yield found
            await found.close()
        finally:
            await node.stop(100)


def run(loop: str, folder: Path, scenario: Scenario, **texts: str) -> None:
    async def whole() -> None:
        async with listening(folder, {name.replace("_", "."): text for name, text in texts.items()}) as found:
            await scenario(found)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed(header(18, 0)))
    length = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 10), "big")
    return len(await asyncio.wait_for(reader.readexactly(length), 10)) == length


every_loop = pytest.mark.parametrize("loop", LOOPS)


@every_loop
def test_a_client_is_answered_and_gone_when_it_goes(loop: str, tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        reader, writer = await found.encrypted()
        assert await is_answered(reader, writer)
        assert found.now == (0, 1)
        writer.close()
        await found.until(lambda: found.now == (0, 0))

    run(loop, tmp_path, scenario)


@every_loop
@pytest.mark.parametrize("limit", ["max_connections", "listener_name_ssl_max_connections"])
def test_handshakes_count_against_the_limit_and_end_in_time(
    loop: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_MS", 2_000)

    async def scenario(found: Listening) -> None:
        silent = [await found.raw() for _ in range(2)]
        await found.until(lambda: found.now == (2, 0))
        refused, _ = await found.raw()
        assert await asyncio.wait_for(refused.read(), 10) == b""
        assert found.node._gateway.metrics.connections_refused == 1
        for reader, _ in silent:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        await found.until(lambda: found.now == (0, 0))
        assert found.node._gateway.metrics.handshakes_failed == 2
        clients = [await found.encrypted() for _ in range(2)]
        for reader, writer in clients:
            assert await is_answered(reader, writer)
        assert found.now == (0, 2)

    run(loop, tmp_path, scenario, **{limit: "2"})


def test_a_listener_has_its_own_limit_of_connections_which_may_change(tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        async def is_admitted() -> bool:
            reader, writer = await found.plain()
            try:
                return await is_answered(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                return False

        assert [await is_admitted() for _ in range(3)] == [True, True, False]
        assert await is_answered(*await found.encrypted())
        found.harness.catalog.broker_configs[""] = {"listener.name.plaintext.max.connections": "3"}
        version = found.harness.catalog.change()
        await found.until(lambda: found.node._gateway.view.version == version)
        assert [await is_admitted() for _ in range(2)] == [True, False]

    run("asyncio", tmp_path, scenario, listener_name_plaintext_max_connections="2")


@every_loop
@pytest.mark.parametrize(
    "sent", [b"", b"\x16", b"\x16\x03\x01\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10\0\x12", bytes(70_000)]
)
def test_what_is_no_tls_is_closed(loop: str, tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(found: Listening) -> None:
        reader, writer = await found.raw()
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(10):
            try:
                while await reader.read(1000):
                    continue
            except ConnectionResetError:
                pass
        await found.until(lambda: found.now == (0, 0))
        assert found.node._gateway.metrics.handshakes_failed == 1
        assert await is_answered(*await found.encrypted())

    with caplog.at_level(logging.ERROR):
        run(loop, tmp_path, scenario)
    assert [record.message for record in caplog.records if record.name in ("asyncio", "kshare_gateway")] == []


@every_loop
def test_garbage_after_the_handshake_closes_this_connection_only(loop: str, tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        other = await found.encrypted()
        reader, writer = await found.encrypted()
        assert await is_answered(reader, writer)
        writer.write(b"\xff\xff\xff\xff")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        await found.until(lambda: found.now == (0, 1))
        assert await is_answered(*other)

    run(loop, tmp_path, scenario)


@every_loop
def test_a_stop_ends_handshakes(loop: str, tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        reader, _ = await found.raw()
        await found.until(lambda: found.now == (1, 0))
        await found.node.stop(100)
        assert found.now == (0, 0)
        assert await asyncio.wait_for(reader.read(), 10) == b""

    run(loop, tmp_path, scenario)


def test_altered_configs_are_in_force_for_the_first_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        altered = {"listener.name.ssl.ssl.client.auth": "required"}
        stores = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(AUTHORITY.write(tmp_path / "ca.pem"))}
        async with listening(tmp_path, stores, altered) as found:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await is_answered(*await found.encrypted())

    asyncio.run(scenario())


def test_altered_configs_that_cannot_be_used_leave_those_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    altered = {"listener.name.ssl.ssl.keystore.location": "/gone.pem", "listeners": "SSL://127.0.0.1:1"}

    async def scenario() -> None:
        async with listening(tmp_path, {}, altered) as found:
            assert await is_answered(*await found.encrypted())

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "listener SSL keeps its former certificates" in caplog.text
    assert "altered broker configs have no effect at this gateway: listeners; set them in its file" in caplog.text


def test_what_the_catalog_is_told(tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        node = found.registered
        assert [(each.name, each.security_protocol, each.host) for each in node.listeners] == [
            ("PLAINTEXT", "PLAINTEXT", "127.0.0.1"),
            ("SSL", "SSL", "127.0.0.1"),
        ]
        first = node.listeners[0]
        assert (node.advertised_host, node.advertised_port) == (first.host, first.port)
        assert found.node.address == f"127.0.0.1:{first.port}"
        assert len({each.port for each in node.listeners}) == 2

    run("asyncio", tmp_path, scenario)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async def scenario(found: Listening) -> None:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{found.port}"):
            async with listening(tmp_path, {"listeners": f"SSL://127.0.0.1:{found.port}"}):
                raise AssertionError("two listen at one port")

    run("asyncio", tmp_path, scenario)
