"""Settings of a gateway node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kshare_core.configs import DEFAULT_QUEUED_BYTES, Configs
from kshare_gateway.connections.listeners import PLAINTEXT, GatewayListener
from kshare_gateway.connections.listening_sockets import SocketsOfListeners


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of a gateway node; clients connect to `client_listen` ("host:port", port 0 picks a free one).

    Clients are told `advertised_host` and `advertised_port`; empty and 0 mean those of `client_listen`. An empty
    `client_listen` opens no socket: connections then come only from `GatewayNode.new_connection`. If `listeners`
    (Kafka's, see `configured_listeners`) are given, these three are ignored. `configs` has Kafka's broker configs and
    kshare's own.
    """

    node_id: int
    client_listen: str
    advertised_host: str
    advertised_port: int
    coordinator_address: str
    configs: Configs
    listeners: Sequence[GatewayListener] = ()
    queued_bytes: int = DEFAULT_QUEUED_BYTES
    """Memory budget of requests and responses (`request_memory`): the effective kshare.queued.max.bytes."""
    sockets: SocketsOfListeners = field(default_factory=dict)
    """Sockets that listen already; a listener without any is bound."""
    leaders_are_here: bool = False
    """Whether the leaders run in this process: batches are then passed by reference, and no cache saves a transfer."""

    def all_listeners(self) -> tuple[GatewayListener, ...]:
        """`listeners`, or the one at `client_listen`; none if connections come only from a simulation."""
        if self.listeners or not self.client_listen:
            return tuple(self.listeners)
        host, _, port = self.client_listen.rpartition(":")
        only = GatewayListener(
            name=PLAINTEXT,
            security_protocol=PLAINTEXT,
            host=host.strip("[]"),
            port=int(port),
            advertised_host=self.advertised_host or host,
            advertised_port=self.advertised_port,
        )
        return (only,)
