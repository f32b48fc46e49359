"""Settings of a gateway node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_gateway.listeners import PLAINTEXT, GatewayListener

BUSY_POLL_US = 2_000
"""Longer than what an acknowledgement takes through all roles where the disk is quick."""


def busy_poll_limit_us(configs: Configs, *, may_keep_busy: bool) -> int:
    """What kshare.gateway.busy.poll.max.us means in this process."""
    given = configs.integer("kshare.gateway.busy.poll.max.us")
    return given if given >= 0 else BUSY_POLL_US if may_keep_busy else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """`client_listen` is where clients connect ("host:port", port 0 picks one).

    `advertised_host` and `advertised_port` are what clients are told; empty and 0 mean those of `client_listen`.
    An empty `client_listen` opens no socket: connections then come only from `GatewayNode.new_connection`.
    Where there are `listeners` (Kafka's, see `configured_listeners`), these three mean nothing.
    `configs` has Kafka's broker configs and kshare's own.
    """

    node_id: int
    client_listen: str
    advertised_host: str
    advertised_port: int
    coordinator_address: str
    configs: Configs
    listeners: Sequence[GatewayListener] = ()
    busy_poll_limit_us: int = 0
    """See `busy_poll`; not taken from `configs`, because it depends on the process what -1 means."""
    has_leaders_here: bool = False
    """Whether the leaders are in the same process, on the same event loop."""

    def all_listeners(self) -> tuple[GatewayListener, ...]:
        """`listeners`, or the one at `client_listen`; none where connections come only from a simulation."""
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
