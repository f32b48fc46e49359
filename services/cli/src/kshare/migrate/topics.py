"""The topics of a migration: those of the old place, and what is missing at the new one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kshare.addresses import Address
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.offsets import EARLIEST, LATEST, NamedPartition, look_up_offsets
from kshare.commands.resource_configs import TOPIC, own_configs
from kshare.endpoint import Endpoint
from kshare.failure import CommandFailed
from kshare.kafka_connection import KafkaConnection, refuse
from kshare_core.errors import ErrorCode
from kshare_upstream.topics import replication_factor
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult
from kshare_wire.generated.responses.metadata import MetadataResponse

CREATE_TOPICS_VERSION = 5
"""The lowest whose response tells the topic's configs."""
TIMEOUT_MS = 30_000
SERVED_WITHIN_S, SERVED_POLL_S = 30.0, 0.2
OWN_PREFIX = "__"
"""Names of topics that a system made for itself."""
KEPT_BY_KSHARE = frozenset({"errors.deadletterqueue.group.enable"})
"""Topic configs that the kshare in front of a cluster keeps, since the cluster does not know them."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class OldTopic:
    """A topic of the old place; `configs` were set on it."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic at the new place: `found_partitions` is 0 while it is missing.

    Its configs are in three parts: the cluster's, those that kshare keeps, and those that neither has.
    """

    name: str
    partitions: int
    found_partitions: int
    configs: Mapping[str, str]
    kept_by_kshare: Mapping[str, str]
    left_out: Mapping[str, str]

    @property
    def is_missing(self) -> bool:
        return not self.found_partitions

    @property
    def problem(self) -> str | None:
        if self.found_partitions in (0, self.partitions):
            return None
        return f"topic {self.name} has {self.partitions} partitions at --from and {self.found_partitions} at --to"


def plan_topics(
    old: Iterable[OldTopic], found: Mapping[str, int], known_configs: Collection[str], replicas: int
) -> list[TopicPlan]:
    """`found` has the partition counts of the new place's topics, `known_configs` the names that its topics have."""
    return [_plan(topic, found.get(topic.name, 0), known_configs, replicas) for topic in old]


def _plan(topic: OldTopic, found: int, known_configs: Collection[str], replicas: int) -> TopicPlan:
    kept = {name: value for name, value in topic.configs.items() if name in KEPT_BY_KSHARE}
    configs = {
        name: value
        for name, value in topic.configs.items()
        if name in known_configs and name not in kept and not (name == MIN_INSYNC_REPLICAS and int(value) > replicas)
    }
    return TopicPlan(
        name=topic.name,
        partitions=topic.partitions,
        found_partitions=found,
        configs=configs,
        kept_by_kshare=kept,
        left_out={name: value for name, value in topic.configs.items() if name not in configs and name not in kept},
    )


def read_topics(cluster: Endpoint, chosen: Sequence[str]) -> list[OldTopic]:
    """The chosen topics, or all that are not internal, by name; CommandFailed if a chosen one does not exist."""
    metadata = reach(*cluster)
    topics = [topic_of(metadata, name) for name in chosen] if chosen else metadata.topics
    partitions = {
        str(topic.name): len(topic.partitions)
        for topic in topics
        if not topic.is_internal and not str(topic.name).startswith(OWN_PREFIX)
    }
    configs = own_configs(cluster, TOPIC, sorted(partitions))
    return [OldTopic(name, count, configs[name]) for name, count in sorted(partitions.items())]


class NewTopics:
    """The topics of the cluster that is migrated to, and their creation."""

    def __init__(self, cluster: Endpoint, wanted_replicas: int) -> None:
        self._cluster = cluster
        self._metadata = reach(*cluster)
        self.replicas = replication_factor(len(self._metadata.brokers), wanted_replicas)

    def plan(self, old: Sequence[OldTopic]) -> list[TopicPlan]:
        """Changes nothing: the names of topic configs are those in the answer to a creation that is only validated."""
        found = {str(topic.name): len(topic.partitions) for topic in self._metadata.topics}
        missing = [topic for topic in old if topic.name not in found]
        known = self._known_configs(missing[0]) if missing else set[str]()
        return plan_topics(old, found, known, self.replicas)

    def create(self, plan: TopicPlan) -> None:
        """Creates a topic, unless it exists by now; CommandFailed."""
        self._ask(plan.name, plan.partitions, plan.configs, validate_only=False)

    def _known_configs(self, topic: OldTopic) -> set[str]:
        answer = self._ask(topic.name, topic.partitions, {}, validate_only=True)
        if not answer.configs:
            raise CommandFailed(
                f"{self._cluster.bootstrap} does not tell the configs of topics, which needs DescribeConfigs there"
            )
        return {config.name for config in answer.configs}

    def _ask(
        self, name: str, partitions: int, configs: Mapping[str, str], *, validate_only: bool
    ) -> CreatableTopicResult:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=self.replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
        address = controller_of(self._metadata)
        with KafkaConnection(
            address, timeout_s=TIMEOUT_MS / 1000 + 5, properties=self._cluster.properties
        ) as connection:
            (result,) = connection.call(request, CREATE_TOPICS_VERSION).topics
        if result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            refuse(result.error_code, f"creating topic {name} at {self._cluster.bootstrap}", result.error_message)
        return result


def controller_of(metadata: MetadataResponse) -> Address:
    """The broker that takes requests for the controller; CommandFailed while there is none."""
    for broker in metadata.brokers:
        if broker.node_id == metadata.controller_id:
            return Address(broker.host, broker.port)
    raise CommandFailed(f"the cluster names no controller (node {metadata.controller_id}); try again")


def wait_until_served(cluster: Endpoint, topics: Mapping[str, int]) -> None:
    """Returns once new topics have leaders that answer, some time after their creation is; CommandFailed."""
    deadline = time.monotonic() + SERVED_WITHIN_S
    while True:
        try:
            count_records(cluster, topics)
            return
        except CommandFailed:
            if time.monotonic() > deadline:
                raise
        time.sleep(SERVED_POLL_S)


def count_records(cluster: Endpoint, topics: Mapping[str, int]) -> dict[NamedPartition, int]:
    """The length of each partition's log in offsets, by topics with their partition counts; CommandFailed."""
    partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
    if not partitions:
        return {}
    first = look_up_offsets(cluster.bootstrap, partitions, EARLIEST, cluster.properties)
    end = look_up_offsets(cluster.bootstrap, partitions, LATEST, cluster.properties)
    return {each: end[each] - first[each] for each in partitions}
