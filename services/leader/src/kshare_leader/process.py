"""One leader as a process: its node of the flags and the configuration."""

from __future__ import annotations

import logging

from kshare_core.configs import InvalidConfig
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.existing_cluster import upstream_opener
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.memory.budget import role_configs
from kshare_servicekit.memory.limit import queued_bytes, share_partitions
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import ProcessSettings

_logger = logging.getLogger(__name__)


def build(environment: Environment, network: Network, settings: ProcessSettings) -> LeaderNode:
    """Builds the node of the process; raises SettingsError for a missing, unknown or invalid setting."""
    if settings.coordinator_address is None:
        raise SettingsError(
            "--coordinator-address (or KSHARE_COORDINATOR_ADDRESS) is missing: the coordinator's host:port"
        )
    try:
        configs, warnings = role_configs(settings.properties(), "leader", settings.memory_budget)
        open_upstream = upstream_opener(configs)
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    for warning in warnings:
        _logger.warning("%s: %s", settings.config, warning)
    return LeaderNode(
        environment=environment,
        network=network,
        settings=LeaderSettings(
            node_id=settings.node_id,
            listen=settings.listen,
            coordinator_address=settings.coordinator_address,
            configs=configs,
            queued_bytes=queued_bytes(configs),
            max_share_partitions=share_partitions(configs),
        ),
        open_upstream=open_upstream,
    )


def main() -> int:
    """The exit code of the process, when it ended."""
    return role_main("leader", ProcessSettings, build, use_uvloop=True)
