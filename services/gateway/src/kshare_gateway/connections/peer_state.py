"""Detection of a TCP peer's close without reading from the connection."""

from __future__ import annotations

import os
import socket

_CLOSED_STATES = frozenset({7, 8})
"""TCP_CLOSE (after a reset) and TCP_CLOSE_WAIT (after a FIN), in linux/tcp.h."""


def peer_has_gone(descriptor: int) -> bool:
    """Whether the peer closed or reset the connection; False if the operating system does not tell."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None or descriptor < 0:
        return False
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return connection.getsockopt(socket.IPPROTO_TCP, option, 1)[0] in _CLOSED_STATES
    except OSError:  # it is not a TCP socket
        return False
