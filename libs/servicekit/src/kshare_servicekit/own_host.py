"""What this machine is called, for whoever is told to connect to it."""

from __future__ import annotations

import socket


def own_host() -> str:
    """The machine's name, or localhost where the name means nothing even here."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
