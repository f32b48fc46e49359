"""Settings of roles in front of an existing cluster, and of that cluster, for tests with faults.

with ExistingCluster(folder, brokers=3, settings=of_brokers(3)) as existing:
    with RestartedRoles(roles, attached_to(existing)) as roles: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from confluent_kafka.admin import AdminClient

from support.clients.several_coordinator_load import wait_until
from support.kafka.existing_cluster import ExistingCluster

BROKER_BACK_WITHIN_S = 60.0


def attached_to(existing: ExistingCluster) -> dict[str, str]:
    """What every role of kshare reads."""
    return {
        "group.initial.rebalance.delay.ms": "0",
        "kshare.engine": "kafka",
        "kshare.metadata.store": "kafka",
        "kshare.upstream.bootstrap.servers": existing.bootstrap,
    }


def of_brokers(count: int) -> dict[str, str]:
    """Replicas on all brokers; a broker that is killed is replaced as leader after three seconds."""
    return {
        "default.replication.factor": str(count),
        "min.insync.replicas": str(max(1, count - 1)),
        "offsets.topic.replication.factor": str(count),
        "offsets.topic.num.partitions": "3",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


@contextmanager
def paused(existing: ExistingCluster) -> Iterator[None]:
    """All brokers are stopped with SIGSTOP for the length of the block."""
    with ExitStack() as stack:
        for broker in existing.brokers:
            stack.enter_context(broker.paused())
        yield


def wait_until_in_sync(existing: ExistingCluster, topic: str | None = None) -> None:
    """Until every replica, of the topic or of all topics, is in sync."""
    admin = AdminClient({"bootstrap.servers": existing.bootstrap})

    def is_in_sync() -> bool:
        topics = admin.list_topics(timeout=10)
        found = [topics.topics[topic]] if topic else [*topics.topics.values()]
        partitions = [partition for each in found for partition in each.partitions.values()]
        return bool(partitions) and all(set(each.isrs) == set(each.replicas) for each in partitions)

    wait_until(is_in_sync, BROKER_BACK_WITHIN_S, "all replicas are in sync")
