"""The topics that kshare keeps its own rows in: the state of share groups, and the coordinator's metadata.

`kshare up` and `kshare attach` make them before the roles start; else the first share coordinator makes that of the
state, and the first coordinator that of the metadata. A topic that exists is used as it is. Its partition count must
be the configured one, because the partition of a row follows from it. The cluster must remove nothing from it by
itself: only the owner of a log knows which of its rows are superseded. It must take batches of MAX_BATCH_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_upstream.partition_log import Refused
from kshare_upstream.port import ClusterView, Upstream
from kshare_upstream.topics import (
    MAX_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES_CONFIG,
    UNSHORTENED,
    Replicas,
    create_topic,
    durable_configs,
    too_few_replicas,
    topic_configs,
)

STATE, METADATA, DEAD_LETTER_NOTES = "state", "metadata", "dead_letters"
METADATA_PARTITIONS = 2
"""Partition 0 has the coordinator's rows, partition 1 the addresses of the coordinators."""
STATE_PARTITIONS_CONFIG = "share.coordinator.state.topic.num.partitions"


class WrongTopic(Exception):
    """A topic of kshare's exists and cannot be used; the text says what to change."""


class OwnTopic(NamedTuple):
    """A topic of kshare's."""

    name: str
    partitions: int


def state_topic(prefix: str, partitions: int) -> OwnTopic:
    """`prefix` is kshare.upstream.topic.prefix."""
    return OwnTopic(f"{prefix}{STATE}", partitions)


def metadata_topic(prefix: str) -> OwnTopic:
    return OwnTopic(f"{prefix}{METADATA}", METADATA_PARTITIONS)


def dead_letter_notes_topic(prefix: str) -> str:
    return f"{prefix}{DEAD_LETTER_NOTES}"


def own_topic_names(prefix: str) -> frozenset[str]:
    """The topics whose contents concern kshare alone; gateways mark them as internal."""
    return frozenset((f"{prefix}{STATE}", f"{prefix}{METADATA}", dead_letter_notes_topic(prefix)))


async def create_own_topics(
    upstream: Upstream, topics: Sequence[OwnTopic], replicas: Replicas, warn: Callable[[str], None]
) -> list[str]:
    """Creates those that are missing and returns their names; WrongTopic, Refused, or as any request.

    `warn` gets a sentence if they have fewer replicas than `replicas.wanted`.
    """
    view = await upstream.describe([topic.name for topic in topics])
    count = replicas.for_new_topic(len(view.brokers))
    created = []
    for topic in topics:
        if not _exists(view, topic) and await create_topic(
            upstream, topic.name, partitions=topic.partitions, replicas=count, configs=durable_configs(count)
        ):
            created.append(topic.name)
    if created and count < replicas.wanted:
        warn(too_few_replicas(created, count, replicas.wanted))
    for topic in topics:
        await _check_configs(upstream, view, topic.name)
    return created


def _exists(view: ClusterView, topic: OwnTopic) -> bool:
    found = view.topics[topic.name]
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    if found.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        raise WrongTopic(f"topic {topic.name} cannot be used: the cluster answers error {found.error_code} for it")
    if len(found.leaders) != topic.partitions:
        text = f"topic {topic.name} has {len(found.leaders)} partitions, and kshare needs {topic.partitions}"
        raise WrongTopic(f"{text}; {_remedy(topic, len(found.leaders))}")
    return True


async def _check_configs(upstream: Upstream, view: ClusterView, name: str) -> None:
    """WrongTopic if the cluster compacts the topic, limits its retention or refuses kshare's largest batches.

    A provider may also change a new topic's configs. Nothing is refused where a broker does not tell them: because of
    its ACLs, or because the topic was made a moment ago and the broker does not know it yet.
    """
    try:
        found = await topic_configs(upstream, name, [*UNSHORTENED, MAX_MESSAGE_BYTES_CONFIG])
    except Refused:
        return
    wanted = {config: value for config, value in UNSHORTENED.items() if found.get(config, value) != value}
    reason = "the cluster would remove rows that kshare needs"
    if not wanted and int(found.get(MAX_MESSAGE_BYTES_CONFIG, MAX_BATCH_BYTES)) < MAX_BATCH_BYTES:
        wanted = {MAX_MESSAGE_BYTES_CONFIG: str(MAX_MESSAGE_BYTES)}
        reason = f"the cluster would refuse batches of kshare, which have up to {MAX_BATCH_BYTES} bytes"
    if wanted:
        broker = next((str(broker.address) for broker in view.brokers.values()), "HOST:PORT")
        raise WrongTopic(
            f"topic {name} has {', '.join(f'{config}={found[config]}' for config in wanted)}: {reason}; "
            f"kafka-configs.sh --bootstrap-server {broker} --alter --entity-type topics --entity-name {name} "
            f"--add-config {','.join(f'{config}={value}' for config, value in wanted.items())}"
        )


def _remedy(topic: OwnTopic, count: int) -> str:
    other_prefix = "use another kshare.upstream.topic.prefix"
    return (
        other_prefix if topic.name.endswith(METADATA) else f"set {STATE_PARTITIONS_CONFIG}={count}, or {other_prefix}"
    )
