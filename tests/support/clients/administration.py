"""Topics and group configs through confluent-kafka's AdminClient, as tests and benchmarks need them."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

TIMEOUT_S = 30


def create_topic(bootstrap: str, name: str, partitions: int, **configs: str) -> None:
    """Creates a topic and returns when the broker knows all of its leaders, too: Kafka's controller answers before."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    _create(bootstrap, NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings))


def create_replicated_topic(bootstrap: str, name: str, partitions: int, replication_factor: int) -> None:
    """Likewise; the cluster places the replicas."""
    _create(bootstrap, NewTopic(name, num_partitions=partitions, replication_factor=replication_factor))


def create_placed_topic(bootstrap: str, name: str, replicas: list[list[int]], configs: dict[str, str]) -> None:
    """Likewise; `replicas` are the brokers of each partition, the leader first."""
    _create(bootstrap, NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas, config=configs))


def _create(bootstrap: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([topic], request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)
    wait_until_known(bootstrap, topic.topic, topic.num_partitions)


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic and returns when the broker knows it, too: until then it may serve the deleted topic's log."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while name in admin.list_topics(timeout=TIMEOUT_S).topics:
        assert time.monotonic() < deadline, f"topic {name} was deleted and is still listed"
        time.sleep(0.02)


def wait_until_known(bootstrap: str, name: str, partitions: int) -> None:
    """Until the broker knows all leaders of a topic, and they serve it: in Kafka they do so some time later."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + TIMEOUT_S
    while not (_is_known(admin, name, partitions) and _is_served(admin, name, partitions)):
        assert time.monotonic() < deadline, f"topic {name} has no leaders"
        time.sleep(0.02)


def _is_served(admin: AdminClient, name: str, partitions: int) -> bool:
    wanted = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}  # type: ignore[no-untyped-call]
    try:
        for future in admin.list_offsets(wanted, request_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
    except KafkaException:
        return False
    return True


def _is_known(admin: AdminClient, name: str, partitions: int) -> bool:
    found = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions.values()
    return len(found) >= partitions and all(partition.leader >= 0 for partition in found)


def broker_addresses(bootstrap: str) -> list[str]:
    """Where clients are sent by Metadata: in front of an existing cluster not to the address that they began with."""
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).brokers
    return [f"{broker.host}:{broker.port}" for _, broker in sorted(brokers.items())]


def alter_group(bootstrap: str, group: str, configs: dict[str, str], **settings: Any) -> None:
    """Sets configs of a group (`kafka-configs --entity-type groups`)."""
    _alter(bootstrap, ResourceType.GROUP, group, configs, **settings)


def alter_topic(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    """Sets configs of a topic (`kafka-configs --entity-type topics`)."""
    _alter(bootstrap, ResourceType.TOPIC, topic, configs)


def _alter(bootstrap: str, kind: ResourceType, name: str, configs: dict[str, str], **settings: Any) -> None:
    client = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, **client})
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)


def read_from_earliest(bootstrap: str, group: str, **settings: Any) -> None:
    """Makes a share group start at the first record of its topics; `settings` are the client's, with underscores."""
    alter_group(bootstrap, group, {"share.auto.offset.reset": "earliest"}, **settings)
