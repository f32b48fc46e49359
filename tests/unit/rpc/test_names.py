"""Names of roles: a query that a silent name server lost is repeated each second, and every address is tried."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.grpc_channel import GrpcChannel
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.names import look_up
from kshare_rpc.network import CallNotStarted, Service
from support.environment.unavailable import unavailable

NAME_SERVER = """
import fcntl, socket, struct, sys, threading, time
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))
silent_s = float(sys.argv[1])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))

def serve():
    first = None
    while True:
        query, peer = server.recvfrom(600)
        first = first or time.monotonic()
        if time.monotonic() - first < silent_s:
            continue
        question = query[12:query.index(0, 12) + 5]
        is_a = struct.unpack(">H", question[-4:-2])[0] == 1
        answer = b"\\xc0\\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + bytes([10, 0, 0, 9]) if is_a else b""
        head = query[:2] + b"\\x81\\x80" + struct.pack(">HHHH", 1, int(is_a), 0, 0)
        server.sendto(head + question + answer, peer)

threading.Thread(target=serve, daemon=True).start()

import asyncio
from kshare_rpc.names import look_up, repeat_queries_early
repeat_queries_early()
began = time.monotonic()
found = asyncio.run(look_up("leader-1.example", 1))
print(found[0], time.monotonic() - began)
"""
IN_A_NAMESPACE = "mount --bind {configuration} /etc/resolv.conf && exec {python} {script} {silent_s}"


@pytest.mark.parametrize("silent_s", [0.3, 2.5])
def test_a_name_is_found_a_second_after_its_server_answers_again(silent_s: float, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unavailable("only root makes a network namespace, which the test's name server needs")
    configuration, script = tmp_path / "resolv.conf", tmp_path / "ask.py"
    configuration.write_text("nameserver 127.0.0.1\n")
    script.write_text(NAME_SERVER)
    command = IN_A_NAMESPACE.format(
        configuration=configuration, python=sys.executable, script=script, silent_s=silent_s
    )
    printed = subprocess.run(["unshare", "-n", "-m", "sh", "-c", command], check=True, capture_output=True, text=True)
    address, seconds = printed.stdout.split()
    assert address == "10.0.0.9" and silent_s <= float(seconds) < silent_s + 1.5


def test_the_systems_names() -> None:
    assert set(asyncio.run(look_up("localhost", 80))) <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError):
        asyncio.run(look_up("no-such-host.invalid", 80))


async def answer(request: leader_pb2.ShareAcknowledgeRequest, _: memoryview) -> leader_pb2.ShareAcknowledgeResponse:
    return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=7)


@pytest.mark.parametrize(
    "found",
    [("127.0.0.1",), ("127.0.0.1", "::1"), ("192.0.2.1", "127.0.0.1")],
    ids=["one", "two", "one that does not answer"],
)
def test_a_channel_tries_the_addresses_of_a_name(found: Sequence[str]) -> None:
    async def names(host: str, port: int) -> Sequence[str]:
        return found

    async def scene() -> None:
        network = GrpcNetwork(local_sockets=False)
        server = await network.serve("127.0.0.1:0", [Service("Leader", {SHARE_ACKNOWLEDGE: answer})])
        port = server.address.rpartition(":")[2]
        channel = GrpcChannel(f"leader-1:{port}", look_up=names)
        request = leader_pb2.ShareAcknowledgeRequest()
        response, _ = await channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=20_000)
        assert response.acquisition_lock_timeout_ms == 7
        await channel.close()
        await server.stop(0)

    asyncio.run(scene())


def test_a_channel_to_an_unknown_name() -> None:
    async def names(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    async def scene() -> None:
        channel = GrpcChannel("leader-1:1", look_up=names)
        with pytest.raises(CallNotStarted, match=r"cannot connect to leader-1:1: .*no such name"):
            await channel.call(SHARE_ACKNOWLEDGE, leader_pb2.ShareAcknowledgeRequest(), timeout_ms=20_000)
        await channel.close()

    asyncio.run(scene())
