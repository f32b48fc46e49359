"""The sockets of a listener, which a gateway binds itself or gets from the process that started it.

`kshare up` opens them before the gateway's program is loaded, and keeps them while a gateway is started again. Clients
then wait for a response, and are not refused: librdkafka doubles its wait after each refusal, so that it would come
back seconds after the gateway did.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BACKLOG = 100

SocketsOfListeners = Mapping[str, Sequence[socket.socket]]
"""Listening sockets by the listener's name."""

_AddressInfo = tuple[Any, Any, int, str, Any]
"""What getaddrinfo returns for each address."""


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets at every address of the host, or at every interface for an empty one; they do not listen yet. OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return _bound(found, host, port)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """As `bound_sockets`, and they listen; for a program without an event loop."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = _bound(found, host, port)
    for each in sockets:
        each.listen(BACKLOG)
    return sockets


def as_flag(sockets: SocketsOfListeners) -> str:
    """The value of --client-sockets for a process that inherits these sockets."""
    return ",".join(f"{name}={each.fileno()}" for name, those in sockets.items() for each in those)


def from_flag(text: str) -> dict[str, list[socket.socket]]:
    """The sockets that the flag names by their file descriptors; ValueError."""
    found: dict[str, list[socket.socket]] = {}
    for part in text.split(","):
        name, _, descriptor = part.rpartition("=")
        if not name or not descriptor.isascii() or not descriptor.isdigit():
            raise ValueError(f"--client-sockets must be LISTENER=FILE_DESCRIPTOR,..., found {part!r}")
        try:
            found.setdefault(name, []).append(socket.socket(fileno=int(descriptor)))
        except OSError as error:
            raise ValueError(f"--client-sockets: {part!r} is no socket of this process: {error.strerror}") from error
    return found


def _bound(found: Iterable[_AddressInfo], host: str, port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for kind, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            each = socket.socket(kind, socket.SOCK_STREAM)
            sockets.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
    except OSError as error:
        for each in sockets:
            each.close()
        text = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise OSError(error.errno, text) from error
    return sockets
