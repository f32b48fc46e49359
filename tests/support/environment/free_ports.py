"""TCP ports of loopback for servers that get their port some seconds before they listen.

They are below those that the system draws for itself (Linux: 32768 and above) and below those that `kshare up` draws
for its roles, so nobody else comes to one meanwhile; and each is given once, whichever test process asks, until all
were. The FOLLOWING ones after each are given to nobody: a gateway in mode proxy opens them for the cluster's brokers.
"""

from __future__ import annotations

import socket

from support.environment.installation import alone, cache_folder

PORTS = range(10_000, 20_000)
FOLLOWING = 4


def free_port() -> int:
    """One that nobody listens on now, and that no other test was given lately."""
    with alone("ports"):
        counter = cache_folder() / "next-port"
        text = counter.read_text() if counter.exists() else ""
        place = (int(text) if text.isdigit() else PORTS.start) - PORTS.start
        for offset in range(len(PORTS)):
            port = PORTS[(place + offset) % len(PORTS)]
            if all(_is_free(each) for each in range(port, port + 1 + FOLLOWING)):
                counter.write_text(str(port + 1 + FOLLOWING))
                return port
    raise RuntimeError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are taken")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # closed connections of a server before do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
