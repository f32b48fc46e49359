"""Settings of roles in front of an existing cluster, and of that cluster, for tests with faults.

with ExistingCluster(folder, brokers=3, settings=of_brokers(3)) as existing:
    with RestartedRoles(roles, attached_to(existing)) as roles: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from support.clients.several_coordinator_load import wait_until
from support.clusters.engines import TestEngine, engine_of_tests, upstream_of_tests
from support.clusters.restarted_roles import RestartedRoles
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
def roles_of_tests(folder: Path, settings: Mapping[str, str], **counts: int) -> Iterator[RestartedRoles]:
    """RestartedRoles on the engine of this run of tests; a cluster behind them ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with upstream_of_tests(folder / "upstream", settings) as upstream:
        of_engine: dict[str, str] = {}
        if upstream is not None:
            of_engine = {**attached_to(upstream), "kshare.upstream.mode": engine_of_tests().mode}
        records = upstream.bootstrap if upstream and engine_of_tests() is TestEngine.KAFKA_SHARE else None
        with RestartedRoles(folder / "roles", {**settings, **of_engine}, **counts) as roles:
            roles.existing_cluster = records
            yield roles


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
