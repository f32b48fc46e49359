"""Names are asked for again while a question is not answered; the first answer counts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.grpc_channel import GrpcChannel
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.name_resolver import QUESTIONS_LIMIT, NameResolver, look_up
from kshare_rpc.network import CallNotStarted, Service

LONG_MS = 60_000


class Silent:
    """A name server that says nothing to the first questions until it is told to, and then that there is no such name.

    Every later question is answered at once.
    """

    def __init__(self, silent: int, then: Sequence[str] | OSError = ("10.0.0.2",)) -> None:
        self._silent, self._then = silent, then
        self.asked = 0
        self.speak = threading.Event()
        self.spoke = threading.Semaphore(0)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        if self.asked <= self._silent:
            assert self.speak.wait(30)
            self.spoke.release()
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        if isinstance(self._then, OSError):
            raise self._then
        return self._then


@contextmanager
def silent_server(silent: int, then: Sequence[str] | OSError = ("10.0.0.2",)) -> Iterator[Silent]:
    server = Silent(silent, then)
    try:
        yield server
    finally:
        server.speak.set()


def test_a_question_without_an_answer_is_asked_again() -> None:
    async def scene() -> None:
        with silent_server(1) as server:
            resolver = NameResolver(server, (10, LONG_MS))
            assert await resolver.addresses_of("leader-1", 1) == ("10.0.0.2",)
            assert server.asked == 2
            server.speak.set()  # what the first question gets now comes too late, and changes nothing
            assert await resolver.addresses_of("leader-1", 1) == ("10.0.0.2",)

    asyncio.run(scene())


def test_a_late_answer_counts_as_well() -> None:
    async def scene() -> None:
        with silent_server(2) as server:
            asking = asyncio.create_task(NameResolver(server, (1, LONG_MS)).addresses_of("leader-1", 1))
            while server.asked < 2:
                await asyncio.sleep(0.001)
            server.speak.set()
            with pytest.raises(socket.gaierror, match="no such name"):
                await asking

    asyncio.run(scene())


def test_a_name_that_is_not_there() -> None:
    async def scene() -> None:
        with silent_server(0, socket.gaierror(socket.EAI_NONAME, "no such name")) as server:
            with pytest.raises(socket.gaierror, match="no such name"):
                await NameResolver(server, (LONG_MS,)).addresses_of("leader-1", 1)
            assert server.asked == 1

    asyncio.run(scene())


def test_no_answer_in_time() -> None:
    async def scene() -> None:
        with silent_server(9) as server:
            with pytest.raises(TimeoutError, match="no response of the name server for leader-1 within 6 ms"):
                await NameResolver(server, (1, 2, 3)).addresses_of("leader-1", 1)
            assert server.asked <= 3

    asyncio.run(scene())


def test_questions_are_limited() -> None:
    """Those that wait count until they end, whoever asked."""

    async def scene() -> None:
        with silent_server(QUESTIONS_LIMIT) as server:
            resolver = NameResolver(server, (1, 1))
            for _ in range(QUESTIONS_LIMIT):
                with pytest.raises(TimeoutError):
                    await resolver.addresses_of("leader-1", 1)
            assert server.asked == QUESTIONS_LIMIT
            server.speak.set()
            for _ in range(QUESTIONS_LIMIT):
                assert server.spoke.acquire(timeout=30)
            patient = resolver.addresses_of("leader-1", 1)
            while True:  # until the loop has heard of the ends
                try:
                    assert await patient == ("10.0.0.2",)
                    return
                except TimeoutError:
                    patient = resolver.addresses_of("leader-1", 1)

    asyncio.run(scene())


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def scene() -> None:
        with silent_server(1) as server:
            asking = asyncio.create_task(NameResolver(server, (LONG_MS,)).addresses_of("leader-1", 1))
            while server.asked < 1:
                await asyncio.sleep(0.001)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(scene())


def test_the_systems_names() -> None:
    assert set(look_up("localhost", 80)) <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError):
        look_up("no-such-host.invalid", 80)


async def answer(request: leader_pb2.ShareAcknowledgeRequest, _: memoryview) -> leader_pb2.ShareAcknowledgeResponse:
    return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=7)


@pytest.mark.parametrize(
    "found",
    [("127.0.0.1",), ("127.0.0.1", "::1"), ("192.0.2.1", "127.0.0.1")],
    ids=["one", "two", "one that does not answer"],
)
def test_a_channel_tries_the_addresses_of_a_name(found: Sequence[str]) -> None:
    async def scene() -> None:
        network = GrpcNetwork(local_sockets=False)
        server = await network.serve("127.0.0.1:0", [Service("Leader", {SHARE_ACKNOWLEDGE: answer})])
        port = server.address.rpartition(":")[2]
        with silent_server(1, found) as names:
            channel = GrpcChannel(f"leader-1:{port}", resolver=NameResolver(names, (10, LONG_MS)))
            request = leader_pb2.ShareAcknowledgeRequest()
            response, _ = await channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=20_000)
            assert response.acquisition_lock_timeout_ms == 7
            await channel.close()
        await server.stop(0)

    asyncio.run(scene())


def test_a_channel_to_a_name_that_nobody_knows() -> None:
    async def scene() -> None:
        with silent_server(0, socket.gaierror(socket.EAI_NONAME, "no such name")) as names:
            channel = GrpcChannel("leader-1:1", resolver=NameResolver(names, (LONG_MS,)))
            with pytest.raises(CallNotStarted, match=r"cannot connect to leader-1:1: .*no such name"):
                await channel.call(SHARE_ACKNOWLEDGE, leader_pb2.ShareAcknowledgeRequest(), timeout_ms=20_000)
            await channel.close()

    asyncio.run(scene())
