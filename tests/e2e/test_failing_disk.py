"""A disk that takes no more writes: requests fail, the health check shows it, and nothing unconfirmed was confirmed.

The files of a running role are limited from outside (RLIMIT_FSIZE): its next write to disk fails as on a full one.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, ShareConsumer, TopicPartition
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.administration import create_topic, read_from_earliest
from support.kshare_cluster import KshareCluster
from support.raw_kafka import one_record_batch, produce_raw
from support.state_of_group import operations_address

KAFKA_STORAGE_ERROR = 56
TIMEOUT_S = 30.0
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


@contextmanager
def no_space(pid: int) -> Iterator[None]:
    """A process whose files cannot grow."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def health_of(cluster: KshareCluster, role: str) -> int:
    """What a probe sees of a role's newest process."""
    with grpc.insecure_channel(operations_address(cluster, role)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status)


def wait_for_health(cluster: KshareCluster, role: str, wanted: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while health_of(cluster, role) != wanted:
        assert time.monotonic() < deadline, f"{role} is not {wanted} after {TIMEOUT_S} s"
        time.sleep(0.1)


def count_records(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
    consumer.close()
    return int(end)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path) as running:
        yield running


def restart(cluster: KshareCluster, role: str) -> None:
    position = len(cluster.log_text())
    cluster.wait_until_gone(cluster.kill_role(role))
    cluster.wait_for_log(f"role={role.replace('_', '-')}", after=position)


def test_a_leader_that_cannot_write(cluster: KshareCluster) -> None:
    create_topic(cluster.bootstrap, "orders", 1)
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
        assert produce_raw(connection, "orders", bytes(one_record_batch())) == 0
        wait_for_health(cluster, "leader", SERVING)
        with no_space(cluster.role_pid("leader")):
            for _ in range(3):
                assert produce_raw(connection, "orders", bytes(one_record_batch())) == KAFKA_STORAGE_ERROR
            wait_for_health(cluster, "leader", NOT_SERVING)
            assert count_records(cluster.bootstrap, "orders") == 1
    assert "not healthy" in cluster.wait_for_log("not healthy")
    restart(cluster, "leader")
    wait_for_health(cluster, "leader", SERVING)
    assert count_records(cluster.bootstrap, "orders") == 1
    deadline = time.monotonic() + TIMEOUT_S
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
        while produce_raw(connection, "orders", bytes(one_record_batch())) != 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert count_records(cluster.bootstrap, "orders") == 2


def test_a_share_coordinator_that_cannot_write(cluster: KshareCluster) -> None:
    create_topic(cluster.bootstrap, "orders", 1)
    read_from_earliest(cluster.bootstrap, "workers")
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
        assert produce_raw(connection, "orders", bytes(one_record_batch())) == 0
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "workers",
        "share.acknowledgement.mode": "explicit",
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe(["orders"])
        (message,) = next(polled for _ in range(60) if len(polled := list(consumer.poll(0.5))))
        with no_space(cluster.role_pid("share_coordinator")):
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            (error,) = consumer.commit_sync(TIMEOUT_S).values()
            assert isinstance(error, KafkaException), "an acknowledgement that is not on disk was confirmed"
            wait_for_health(cluster, "share-coordinator", NOT_SERVING)
        restart(cluster, "share_coordinator")
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "the record did not come again"
            polled = list(consumer.poll(0.5))
            if polled:
                break
        assert polled[0].value() == message.value()
        consumer.acknowledge(polled[0], AcknowledgeType.ACCEPT)
        assert list(consumer.commit_sync(TIMEOUT_S).values()) == [None]
