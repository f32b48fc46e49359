"""The client of the existing cluster that `kshare.upstream.*` names, for the node of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kshare_core.configs import Configs, InvalidConfig
from kshare_servicekit.tls.to_upstream import client_settings
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ConnectionLost, NotServed
from kshare_upstream.own_topics import STATE_PARTITIONS_CONFIG, OwnTopic, WrongTopic, create_own_topics, state_topic
from kshare_upstream.partition_log import Refused
from kshare_upstream.port import OpenUpstream
from kshare_upstream.sasl import AuthenticationFailed
from kshare_upstream.topics import Replicas

ENGINE, KAFKA = "kshare.engine", "kafka"
METADATA_STORE = "kshare.metadata.store"
BOOTSTRAP_SERVERS = "kshare.upstream.bootstrap.servers"
TOPIC_PREFIX = "kshare.upstream.topic.prefix"
CREATION_RETRY_INTERVAL_S = 1.0


def upstream_opener(configs: Configs) -> OpenUpstream | None:
    """What opens the client; None where neither records nor metadata are in an existing cluster.

    InvalidConfig if a setting is wrong, missing or without effect.
    """
    if KAFKA not in (configs.text(ENGINE), configs.text(METADATA_STORE)):
        return None
    bootstrap = bootstrap_servers(configs)
    settings = client_settings(configs)
    return lambda: Cluster(bootstrap, settings)


def state_topic_of(configs: Configs) -> OwnTopic:
    """The topic with the state of share groups."""
    return state_topic(configs.text(TOPIC_PREFIX), configs.integer(STATE_PARTITIONS_CONFIG))


async def create_state_topic(configs: Configs, on_problem: Callable[[str], None]) -> None:
    """Creates the topic with the state of share groups if it is missing; nothing with another engine.

    It waits for the cluster. `on_problem` gets every new reason for that, and a warning if the topic has too few
    replicas. InvalidConfig if the topic or the credentials cannot be used as they are.
    """
    if configs.text(ENGINE) != KAFKA:
        return
    open_upstream = upstream_opener(configs)
    assert open_upstream is not None
    await create_state_topic_in(open_upstream, configs, on_problem)


async def create_state_topic_in(
    open_upstream: OpenUpstream, configs: Configs, on_problem: Callable[[str], None]
) -> None:
    """See `create_state_topic`."""
    topic = state_topic_of(configs)
    upstream, known = open_upstream(), ""
    try:
        while True:
            try:
                await create_own_topics(upstream, [topic], Replicas.of(configs), on_problem)
            except (WrongTopic, AuthenticationFailed) as error:
                raise InvalidConfig(str(error)) from error
            except (ConnectionLost, NotServed, Refused) as error:
                problem = f"topic {topic.name} cannot be created yet: {error}"
                if problem != known:
                    on_problem(problem)
                known = problem
                await asyncio.sleep(CREATION_RETRY_INTERVAL_S)
            else:
                return
    finally:
        await upstream.close()


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
