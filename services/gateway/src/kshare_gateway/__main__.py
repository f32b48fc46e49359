"""`python -m kshare_gateway`: a gateway in a process of its own; `--help` names the flags.

The loop is uvloop's: client sockets are what a gateway mostly does.
"""

from __future__ import annotations

import sys

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.gateway import log
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import GatewayProcessSettings, SettingsError


def build(environment: Environment, network: Network, settings: GatewayProcessSettings) -> GatewayNode:
    """The node that the flags and the config file ask for."""
    if settings.coordinator_address is None:
        raise SettingsError("--coordinator-address (or KSHARE_COORDINATOR_ADDRESS) is missing")
    try:
        configs, warnings = process_configs(settings.properties())
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
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
        ),
    )


if __name__ == "__main__":
    sys.exit(role_main("gateway", GatewayProcessSettings, build, use_uvloop=True))
