"""`python -m kshare_coordinator --node-id … --data-dir … [--config FILE] …`: the coordinator as a process."""

from __future__ import annotations

import logging
import sys

from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import InvalidConfig, process_configs
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import ProcessSettings, SettingsError

log = logging.getLogger(__name__)


def build(environment: Environment, network: Network, settings: ProcessSettings) -> CoordinatorNode:
    """The node that the process runs; SettingsError names a config that is unknown or has a bad value."""
    try:
        configs, warnings = process_configs(settings.properties())
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    for warning in warnings:
        log.warning("%s: %s", settings.config, warning)
    return CoordinatorNode(
        environment=environment,
        network=network,
        settings=CoordinatorSettings(
            node_id=settings.node_id,
            listen=settings.listen,
            coordinator_address=settings.advertised_address or "",
            configs=configs,
        ),
    )


if __name__ == "__main__":
    sys.exit(role_main("coordinator", ProcessSettings, build, use_uvloop=True))
