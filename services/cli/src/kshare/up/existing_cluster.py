"""What `kshare up` does in the existing cluster before it starts roles with kshare.engine=kafka: it creates topics."""

from __future__ import annotations

from collections.abc import Callable

from kshare.failure import BAD_USE, CommandFailed
from kshare_core.configs import Configs, InvalidConfig
from kshare_servicekit.existing_cluster import (
    ENGINE,
    KAFKA,
    METADATA_STORE,
    TOPIC_PREFIX,
    state_topic_of,
    upstream_opener,
)
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.own_topics import WrongTopic, create_own_topics, metadata_topic
from kshare_upstream.partition_log import Refused
from kshare_upstream.port import OpenUpstream
from kshare_upstream.sasl import AuthenticationFailed
from kshare_upstream.topics import Replicas


async def prepare_cluster(configs: Configs, write_line: Callable[[str], None]) -> None:
    """Creates kshare's own topics where roles use a cluster; CommandFailed."""
    if KAFKA not in (configs.text(ENGINE), configs.text(METADATA_STORE)):
        return
    try:
        open_upstream = upstream_opener(configs)
        assert open_upstream is not None
        created = await _created(open_upstream, configs, lambda text: write_line(f"warning: {text}"))
    except InvalidConfig as error:
        raise CommandFailed(str(error), BAD_USE) from None
    except (ConnectionLost, NotServed, AuthenticationFailed, Refused, WrongTopic) as error:
        raise CommandFailed(f"kshare's topics cannot be created: {error}") from None
    for name in created:
        write_line(f"topic {name} was created in the cluster")


async def _created(open_upstream: OpenUpstream, configs: Configs, warn: Callable[[str], None]) -> list[str]:
    upstream = open_upstream()
    try:
        topics = [state_topic_of(configs), metadata_topic(configs.text(TOPIC_PREFIX))]
        return await create_own_topics(upstream, topics, Replicas.of(configs), warn)
    finally:
        await upstream.close()
