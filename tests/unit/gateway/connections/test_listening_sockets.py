"""The sockets of listeners, and the flag by which a gateway's process gets them."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from kshare_gateway.connections.listening_sockets import as_flag, bound_sockets, from_flag, listening_sockets


def test_sockets_for_an_inherited_flag_listen_before_anybody_accepts() -> None:
    (own,) = listening_sockets("127.0.0.1", 0)
    address = own.getsockname()
    flag = as_flag({"PLAINTEXT": [own]})
    assert flag == f"PLAINTEXT={own.fileno()}"
    ((inherited,),) = from_flag(flag.replace(str(own.fileno()), str(os.dup(own.fileno())))).values()
    own.close()
    with socket.create_connection(address, timeout=10), inherited:
        inherited.setblocking(True)
        accepted, _ = inherited.accept()
        accepted.close()


def test_every_address_of_a_listener_has_its_socket() -> None:
    sockets = listening_sockets("127.0.0.1", 0) + listening_sockets("127.0.0.1", 0)
    flag = ",".join(f"A.b-c_d={os.dup(each.fileno())}" for each in sockets)
    inherited = from_flag(flag)
    assert as_flag(inherited) == flag
    assert [each.getsockname() for each in inherited["A.b-c_d"]] == [each.getsockname() for each in sockets]
    for each in [*sockets, *inherited["A.b-c_d"]]:
        each.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be LISTENER=FILE_DESCRIPTOR"),
        ("PLAINTEXT", "found 'PLAINTEXT'"),
        ("=3", "found '=3'"),
        ("PLAINTEXT=x", "found 'PLAINTEXT=x'"),
        ("PLAINTEXT=999999", "'PLAINTEXT=999999' is no socket of this process"),
    ],
)
def test_a_bad_flag_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match="--client-sockets") as raised:
        from_flag(text)
    assert expected in str(raised.value)


def test_a_port_in_use_is_named_and_nothing_stays_open() -> None:
    (first,) = listening_sockets("127.0.0.1", 0)
    port = first.getsockname()[1]
    before = len(list(Path("/proc/self/fd").iterdir()))
    with first, pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        listening_sockets("127.0.0.1", port)
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


def test_a_bound_socket_refuses_clients() -> None:
    (bound,) = asyncio.run(bound_sockets("127.0.0.1", 0))
    with bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=10)
