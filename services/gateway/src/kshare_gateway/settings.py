"""Settings of a gateway node."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """`client_listen` is where clients connect ("host:port", port 0 picks one).

    `advertised_host` and `advertised_port` are what clients are told; empty and 0 mean those of `client_listen`.
    An empty `client_listen` opens no socket: connections then come only from `GatewayNode.new_connection`.
    `configs` has Kafka's broker configs and kshare's own.
    """

    node_id: int
    client_listen: str
    advertised_host: str
    advertised_port: int
    coordinator_address: str
    configs: Configs
