"""Small writes that go to the socket at once: in order, whole, and never past what the transport has to send first."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest
import uvloop

from kshare_core.prompt_writing import PromptWriter

LOOPS = {"asyncio": None, "uvloop": uvloop.new_event_loop}


async def connected() -> tuple[asyncio.Transport, socket.socket]:
    here, there = socket.socketpair()
    here.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
    return transport, there


@pytest.fixture(params=sorted(LOOPS))
def runner(request: pytest.FixtureRequest) -> Callable[[], asyncio.Runner]:
    return lambda: asyncio.Runner(loop_factory=LOOPS[request.param])


def test_bytes_are_there_when_write_returns(runner: Callable[[], asyncio.Runner]) -> None:
    async def scene() -> None:
        transport, there = await connected()
        PromptWriter(transport).write(b"answer")
        there.settimeout(0)
        assert there.recv(100) == b"answer", "before the turn of the event loop is over"
        transport.close()
        there.close()

    with runner() as running:
        running.run(scene())


@pytest.mark.parametrize("seed", range(5))
def test_order_is_kept_whatever_the_socket_can_take(runner: Callable[[], asyncio.Runner], seed: int) -> None:
    """Some writes by the transport, some past it, more than the socket takes, and a reader that is slow."""
    choices = random.Random(seed)

    async def scene() -> None:
        transport, there = await connected()
        there.setblocking(False)
        writer, sent, found = PromptWriter(transport), bytearray(), bytearray()
        loop = asyncio.get_running_loop()
        while len(sent) < 3_000_000:
            data = choices.randbytes(choices.choice([1, 50, 4_000, 300_000]))
            (writer if choices.random() < 0.7 else transport).write(data)
            sent += data
            if choices.random() < 0.2:
                await asyncio.sleep(0)
            if choices.random() < 0.2:
                found += await loop.sock_recv(there, choices.randrange(1, 200_000))
        while len(found) < len(sent):
            found += await loop.sock_recv(there, 1 << 20)
        assert found == sent
        transport.close()
        there.close()

    with runner() as running:
        running.run(asyncio.wait_for(scene(), 60))


def test_a_connection_that_is_gone_is_the_transports_matter(runner: Callable[[], asyncio.Runner]) -> None:
    async def scene() -> None:
        transport, there = await connected()
        writer = PromptWriter(transport)
        there.close()
        for _ in range(3):
            writer.write(b"nobody")
        transport.close()
        writer.write(b"late")
        await asyncio.sleep(0)

    with runner() as running:
        running.run(scene())
