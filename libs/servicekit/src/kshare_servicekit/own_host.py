"""The default host name of this machine, as advertised to clients and other nodes."""

from __future__ import annotations

import socket


def own_host() -> str:
    """The machine's name, or localhost if the machine itself cannot resolve the name."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
