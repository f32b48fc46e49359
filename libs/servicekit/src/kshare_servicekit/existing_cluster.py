"""The client of the existing cluster that `kshare.upstream.*` names, for the node of a process."""

from __future__ import annotations

from kshare_core.configs import Configs, InvalidConfig
from kshare_servicekit.tls.to_upstream import client_settings
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress
from kshare_upstream.port import OpenUpstream

ENGINE, KAFKA = "kshare.engine", "kafka"
METADATA_STORE = "kshare.metadata.store"
BOOTSTRAP_SERVERS = "kshare.upstream.bootstrap.servers"


def upstream_opener(configs: Configs) -> OpenUpstream | None:
    """What opens the client; None where neither records nor metadata are in an existing cluster.

    InvalidConfig if a setting is wrong, missing or without effect.
    """
    if KAFKA not in (configs.text(ENGINE), configs.text(METADATA_STORE)):
        return None
    bootstrap = bootstrap_servers(configs)
    settings = client_settings(configs)
    return lambda: Cluster(bootstrap, settings)


def bootstrap_servers(configs: Configs) -> list[BrokerAddress]:
    """The addresses of `kshare.upstream.bootstrap.servers`; InvalidConfig."""
    addresses = configs[BOOTSTRAP_SERVERS]
    assert isinstance(addresses, tuple)
    if not addresses:
        who = f"{ENGINE}={KAFKA} and {METADATA_STORE}={KAFKA}"
        raise InvalidConfig(f"{who} need {BOOTSTRAP_SERVERS}, such as broker-1:9092,broker-2:9092")
    return [_address(str(text)) for text in addresses]


def _address(text: str) -> BrokerAddress:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidConfig(f"{BOOTSTRAP_SERVERS} must be host:port, separated by commas; found {text!r}")
    return BrokerAddress(host.strip("[]"), int(port))
