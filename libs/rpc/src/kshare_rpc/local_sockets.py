"""Unix sockets beside loopback ports, a shortcut between roles of one machine.

A message through a loopback port passes the whole of TCP: twice the time of a Unix socket, and a call waits for four of
them. So a server on a loopback address also listens on a Unix socket that is named after the address, and callers of
the address try that socket first. The name is abstract (Linux): it exists in the network namespace as the port does,
and ends with its process. A socket of another user is not trusted: that user could have taken the name before.

The host `[::]` is every address of the machine, of IPv4 and of IPv6, at one socket. asyncio's own socket at `::` takes
connections of IPv6 only.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

LOOPBACK_HOSTS = ("127.0.0.1", "[::1]", "localhost")
EVERY_ADDRESS = "[::]"
BACKLOG = 100
SEND_BUFFER_BYTES = 256 * 1024
"""What the kernel takes of a message at once; it doubles the value, and net.core.wmem_max bounds it (208 KiB on most
machines). No more, because a short answer cannot overtake what the kernel has taken: with 4 MB, a good client waited
300 ms beside clients that fetch much and read nothing (docs/internals/performance.md)."""
_PEER = struct.Struct("iII")
"""Linux's struct ucred: process, user, group."""


def every_address_socket(host: str, port: int) -> socket.socket | None:
    """A listening socket if the host is `[::]`; None for other hosts. OSError."""
    if host != EVERY_ADDRESS:
        return None
    dual = socket.has_dualstack_ipv6()
    found = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=dual)
    found.setblocking(False)
    return found


def listening_socket(address: str) -> socket.socket | None:
    """A listening Unix socket beside the port at "host:port"; None if that is no loopback address, or not on Linux.

    OSError if the name is taken.
    """
    if not _is_local(address):
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(_name(address))
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found


def connected_socket(address: str) -> socket.socket | None:
    """A connected Unix socket to "host:port"; None if there is none."""
    if not _is_local(address):
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    try:
        found.connect(_name(address))
        _, user, _ = _PEER.unpack(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user in (os.geteuid(), 0):
            return found
    except OSError:  # no process listens there, or its backlog is full
        pass
    found.close()
    return None


def take_large_messages(found: socket.socket | None) -> None:
    """Gives a Unix socket a send buffer of SEND_BUFFER_BYTES; TCP sizes its buffers itself."""
    if found is not None and found.family == socket.AF_UNIX:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def _is_local(address: str) -> bool:
    """Whether the role at "host:port" runs on this machine and may be reached through a Unix socket."""
    return sys.platform == "linux" and address.rpartition(":")[0] in LOOPBACK_HOSTS


def _name(address: str) -> str:
    return f"\0kshare-rpc-{address}"
