"""The sockets for clients, which `kshare up` opens before it loads or starts any role, and keeps until it stops.

Clients that come while roles start, or while a gateway is started again, wait for a response and are not refused.
"""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed
from kshare.up.plan import ClusterPlan
from kshare_gateway.connections.listeners import PLAINTEXT
from kshare_gateway.connections.listening_sockets import SocketsOfListeners, listening_sockets


def open_client_sockets(plan: ClusterPlan) -> SocketsOfListeners:
    """Sockets that listen, by the name of the listener; CommandFailed."""
    places = {each.name: (each.host, each.port) for each in plan.listeners} or {PLAINTEXT: plan.client_address}
    opened: SocketsOfListeners = {}
    try:
        for name, (host, port) in places.items():
            opened = {**opened, name: listening_sockets(host, port)}
    except OSError as error:
        close_client_sockets(opened)
        raise CommandFailed(str(error), BAD_USE) from None
    return opened


def close_client_sockets(sockets: SocketsOfListeners) -> None:
    """Closes them in this process; may be called again."""
    for those in sockets.values():
        for each in those:
            each.close()
