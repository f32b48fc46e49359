"""The coordinator as a process: its node of the flags and the configuration."""

from __future__ import annotations

import logging

from kshare_coordinator.machine.metadata_partitions import partition_of_row
from kshare_coordinator.metadata.opening import open_metadata_store
from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import InvalidConfig
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.existing_cluster import upstream_opener
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.memory.budget import role_configs
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import ProcessSettings

EVERY_INTERFACE = ("0.0.0.0", "::", "*")

log = logging.getLogger(__name__)


def build(environment: Environment, network: Network, settings: ProcessSettings) -> CoordinatorNode:
    """The node of this process; SettingsError for a config that is unknown or has a bad value."""
    try:
        configs, warnings = role_configs(settings.properties(), "coordinator", settings.memory_budget)
        open_upstream = upstream_opener(configs)
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    for warning in warnings:
        log.warning("%s: %s", settings.config, warning)
    node_settings = CoordinatorSettings(
        node_id=settings.node_id,
        listen=settings.listen,
        coordinator_address=settings.advertised_address or "",
        configs=configs,
    )
    if configs.text("kshare.metadata.store") == "rocksdb":
        return CoordinatorNode(
            environment=environment, network=network, settings=node_settings, open_upstream=open_upstream
        )
    _check_address(settings, configs.text("kshare.metadata.store"))
    try:
        store = open_metadata_store(environment, configs, partition_of_row, open_upstream=open_upstream)
    except InvalidConfig as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    return CoordinatorNode(
        environment=environment,
        network=network,
        settings=node_settings,
        open_store=lambda: store,
        open_upstream=open_upstream,
    )


def _check_address(settings: ProcessSettings, store: str) -> None:
    """SettingsError if other nodes would get an address that means every interface."""
    host = settings.listen.rpartition(":")[0].strip("[]")
    if settings.advertised_address is None and host in EVERY_INTERFACE:
        text = (
            f"--listen is {settings.listen}, which is not an address at which others can reach this coordinator; with "
            f"kshare.metadata.store={store} --advertised-address must say it, as in coordinator-1:9100"
        )
        raise SettingsError(text)


def main() -> int:
    """The exit code of the process, when it ended."""
    return role_main("coordinator", ProcessSettings, build, use_uvloop=True)
