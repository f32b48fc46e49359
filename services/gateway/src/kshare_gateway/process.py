"""The gateway as a process.

The event loop is uvloop, because a gateway mostly works on client sockets.
"""

from __future__ import annotations

from kshare_core.configs import InvalidConfig
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.connections.listening_sockets import SocketsOfListeners, from_flag
from kshare_gateway.gateway import log
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.existing_cluster import upstream_opener
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.memory.budget import role_configs
from kshare_servicekit.memory.limit import queued_bytes
from kshare_servicekit.own_host import own_host
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import GatewayProcessSettings
from kshare_servicekit.tls.between_roles import needs_known_roles

OPEN_ROLES = (
    "clients authenticate, and whoever reaches the roles' own ports does not have to: give each role a certificate "
    "(kshare.rpc.ssl.*)"
)


def build(environment: Environment, network: Network, settings: GatewayProcessSettings) -> GatewayNode:
    """The node for the given flags and config file."""
    if settings.coordinator_address is None:
        raise SettingsError("--coordinator-address (or KSHARE_COORDINATOR_ADDRESS) is missing")
    try:
        configs, warnings = role_configs(
            {**settings.properties(), **_given_listeners(settings)}, "gateway", settings.memory_budget
        )
        listeners = configured_listeners(configs, own_host)
        if listeners and (settings.advertised_host or settings.advertised_port):
            raise InvalidConfig(
                "--advertised-host is not allowed together with listeners; set advertised.listeners instead"
            )
        if needs_known_roles(configs, has_users=any(listener.is_sasl for listener in listeners)):
            warnings = [*warnings, OPEN_ROLES]
        for warning in warnings:
            log.warning("%s: %s", settings.config, warning)
        return GatewayNode(
            environment=environment,
            network=network,
            settings=GatewaySettings(
                node_id=settings.node_id,
                client_listen=settings.client_listen,
                advertised_host=settings.advertised_host or "",
                advertised_port=settings.advertised_port or 0,
                coordinator_address=settings.coordinator_address,
                configs=configs,
                listeners=listeners,
                queued_bytes=queued_bytes(configs),
                sockets=_inherited_sockets(settings),
            ),
            open_upstream=upstream_opener(configs),
        )
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}" if settings.config else str(error)) from error


def _inherited_sockets(settings: GatewayProcessSettings) -> SocketsOfListeners:
    try:
        return {} if settings.client_sockets is None else from_flag(settings.client_sockets)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _given_listeners(settings: GatewayProcessSettings) -> dict[str, str]:
    """The flags that override the config file."""
    flags = {"listeners": settings.listeners, "advertised.listeners": settings.advertised_listeners}
    return {name: value for name, value in flags.items() if value is not None}


def main() -> int:
    """The exit code of the process, when it ended."""
    return role_main("gateway", GatewayProcessSettings, build, use_uvloop=True, is_called=False)
