"""A connection that is not read shows that its peer has gone."""

from __future__ import annotations

import socket
import struct

from kshare_gateway.connections.peer_state import peer_has_gone


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def test_a_peer_that_closed_or_reset_with_unread_data_before_it() -> None:
    for linger in (b"", struct.pack("ii", 1, 0)):
        client, served = pair()
        with served:
            client.sendall(b"unread")
            assert not peer_has_gone(served.fileno())
            if linger:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
            assert peer_has_gone(served.fileno())


def test_what_is_no_tcp_connection() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not peer_has_gone(one.fileno())
    assert not peer_has_gone(-1)
