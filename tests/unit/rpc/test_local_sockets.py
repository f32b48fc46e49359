"""Unix sockets between roles of one machine: used where present, and only if they belong to the same user."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import pytest

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.local_sockets import SEND_BUFFER_BYTES, connected_socket, listening_socket, take_large_messages
from kshare_rpc.network import Service

NOBODY = 65_534


async def answer(request: leader_pb2.ShareAcknowledgeRequest, _: memoryview) -> leader_pb2.ShareAcknowledgeResponse:
    return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=7)


SERVICE = Service("Leader", {SHARE_ACKNOWLEDGE: answer})


async def call(network: GrpcNetwork, address: str) -> int:
    channel = network.connect(address)
    try:
        request = leader_pb2.ShareAcknowledgeRequest()
        found, _ = await channel.call(SHARE_ACKNOWLEDGE, request, timeout_ms=10_000)
        return found.acquisition_lock_timeout_ms
    finally:
        await channel.close()


def tcp_connections(port: int) -> int:
    """Established ones to a port of this machine."""
    entries = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(entry[2].endswith(f":{port:04X}") and entry[3] == "01" for entry in entries)


@pytest.mark.parametrize(("local_sockets", "connections"), [(True, 0), (False, 1)])
def test_a_call_takes_the_short_way(local_sockets: bool, connections: int) -> None:
    async def scene() -> None:
        network = GrpcNetwork(local_sockets=local_sockets)
        server = await network.serve("127.0.0.1:0", [SERVICE])
        port = int(server.address.rpartition(":")[2])
        channel = network.connect(server.address)
        await channel.call(SHARE_ACKNOWLEDGE, leader_pb2.ShareAcknowledgeRequest(), timeout_ms=10_000)
        assert tcp_connections(port) == connections
        await channel.close()
        await server.stop(0)
        assert connected_socket(server.address) is None, "the name goes with the server"

    asyncio.run(scene())


def test_other_hosts_have_no_short_way() -> None:
    for address in ("0.0.0.0:1234", "10.0.0.1:1234", "leader-0.leaders:1234"):
        assert listening_socket(address) is None
        assert connected_socket(address) is None


def test_a_name_that_is_taken_leaves_the_port(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    taken = listening_socket(address)
    assert taken is not None

    async def scene() -> None:
        network = GrpcNetwork(local_sockets=True)
        with caplog.at_level(logging.WARNING):
            server = await network.serve(address, [SERVICE])
        assert f"{address} is served over TCP only" in caplog.text
        assert await call(GrpcNetwork(local_sockets=False), address) == 7
        await server.stop(0)

    with taken:
        asyncio.run(scene())


def test_the_socket_of_another_user_is_not_trusted() -> None:
    """Another user, who took the name before, would be called in the role's place. The kernel tells who listened."""
    assert os.geteuid() == 0, "this test needs root, to listen as another user"
    address = "127.0.0.1:1"
    os.seteuid(NOBODY)
    try:
        taken = listening_socket(address)
    finally:
        os.seteuid(0)
    assert taken is not None
    with taken, socket.socket(socket.AF_UNIX) as plain:
        plain.connect(f"\0kshare-rpc-{address}")  # it is there
        assert connected_socket(address) is None


def test_a_large_message_fits_into_a_unix_socket_as_far_as_the_system_allows() -> None:
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        before = tcp.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        for each in (left, tcp, None):
            take_large_messages(each)
        # The kernel doubles what it was asked for, to have room for its own books.
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * min(SEND_BUFFER_BYTES, most)
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
