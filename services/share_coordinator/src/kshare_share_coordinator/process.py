"""The share coordinator as a process: its node of the flags and the configuration."""

from __future__ import annotations

import logging

from kshare_core.configs import InvalidConfig
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.existing_cluster import create_state_topic, upstream_opener
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.memory.budget import role_configs
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import ProcessSettings
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings

log = logging.getLogger(__name__)


def build(environment: Environment, network: Network, settings: ProcessSettings) -> ShareCoordinatorNode:
    """The node that the process runs; SettingsError names what is missing, unknown or has a bad value."""
    if settings.coordinator_address is None:
        raise SettingsError("--coordinator-address is missing: the coordinator's host:port for gRPC")
    try:
        configs, warnings = role_configs(settings.properties(), "share-coordinator", settings.memory_budget)
        open_upstream = upstream_opener(configs)
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    for warning in warnings:
        log.warning("%s: %s", settings.config, warning)
    return ShareCoordinatorNode(
        environment=environment,
        network=network,
        settings=ShareCoordinatorSettings(
            node_id=settings.node_id,
            listen=settings.listen,
            coordinator_address=settings.coordinator_address,
            configs=configs,
        ),
        open_upstream=open_upstream,
    )


def main() -> int:
    """The exit code of the process, when it ended."""
    return role_main("share-coordinator", ProcessSettings, build, use_uvloop=True, prepare=create_state_topic)
