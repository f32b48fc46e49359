"""The set-up of a gateway in front of an existing cluster, by kshare.engine=kafka and kshare.upstream.mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshare_core.configs import Configs, InvalidConfig
from kshare_gateway.connections.environment import EMBEDDED_HANDLERS, ConnectionEnvironment
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.served_apis import ServedApi
from kshare_gateway.upstream.front import Front, is_proxy
from kshare_gateway.upstream.identities import check_identities
from kshare_gateway.upstream.ports import BrokerPorts, OpenPort
from kshare_gateway.upstream.proxy_mode import proxy_routes
from kshare_gateway.upstream.relaying_connection import RelayingConnection
from kshare_gateway.upstream.share_mode import share_routes
from kshare_servicekit.existing_cluster import ENGINE, KAFKA, bootstrap_servers
from kshare_servicekit.tls.to_upstream import client_settings
from kshare_upstream.port import OpenUpstream


def configured_front(
    configs: Configs, open_upstream: OpenUpstream | None, listeners: Sequence[GatewayListener], open_port: OpenPort
) -> Front | None:
    """What the node's connections share; None with the embedded engine. InvalidConfig."""
    if configs.text(ENGINE) != KAFKA:
        return None
    if open_upstream is None:
        raise InvalidConfig(f"{ENGINE}={KAFKA} needs the client of an existing cluster")
    settings = client_settings(configs)
    check_identities(configs, listeners)
    if is_proxy(configs):
        routes, ports = proxy_routes(), BrokerPorts(configs, listeners, open_port)
    else:
        routes, ports = share_routes(",".join(map(str, bootstrap_servers(configs)))), None
    return Front(configs=configs, routes=routes, upstream=open_upstream(), settings=settings, ports=ports)


def handlers_of(front: Front | None) -> Mapping[int, ServedApi]:
    """The rows of what the node answers itself."""
    return EMBEDDED_HANDLERS if front is None else front.routes.handlers


def new_relaying_connection(
    connection_id: int, environment: ConnectionEnvironment, listener: str, front: Front, broker_id: int | None
) -> RelayingConnection:
    return RelayingConnection(connection_id, environment, listener, front, broker_id)
