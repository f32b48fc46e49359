"""A disk that takes no more writes: requests fail, the health check shows it, and nothing unconfirmed was confirmed.

When it accepts writes again, so does the role, without a restart: everything confirmed is there, and nothing else.

The files of a running role are limited from outside (RLIMIT_FSIZE): its next write to disk fails as on a full one. The
last test fills a real file system; it mounts one, so it needs root.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, ShareConsumer, TopicPartition
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.clients.administration import create_topic, read_from_earliest
from support.clients.raw_kafka import one_record_batch, produce_raw
from support.clients.state_of_group import operations_address
from support.clusters.kshare_cluster import KshareCluster
from support.environment.unavailable import unavailable

KAFKA_STORAGE_ERROR = 56
TIMEOUT_S = 30.0
HEALED_WITHIN_S = 5.0
"""The store is looked at every second, and opened anew in some tens of milliseconds."""
FILE_SYSTEM_BYTES = 96 * 1024 * 1024
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


SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000", "group.share.record.lock.duration.ms": "5000"}
"""A record whose acknowledgement could not be stored comes again after its lock."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path, SHORT_LOCKS) as running:
        yield running


@contextmanager
def heals_by_itself(cluster: KshareCluster, role: str) -> Iterator[None]:
    """Until the end of the block the role's process accepts writes again, without having been started anew."""
    pid, position = cluster.role_pid(role), len(cluster.log_text())
    yield
    cluster.wait_for_log("accepts writes again", after=position)
    wait_for_health(cluster, role.replace("_", "-"), SERVING)
    assert cluster.role_pid(role) == pid


def test_a_leader_that_cannot_write(cluster: KshareCluster) -> None:
    create_topic(cluster.bootstrap, "orders", 1)
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
        assert produce_raw(connection, "orders", bytes(one_record_batch())) == 0
        wait_for_health(cluster, "leader", SERVING)
        with heals_by_itself(cluster, "leader"):
            with no_space(cluster.role_pid("leader")):
                for _ in range(3):
                    assert produce_raw(connection, "orders", bytes(one_record_batch())) == KAFKA_STORAGE_ERROR
                wait_for_health(cluster, "leader", NOT_SERVING)
                assert count_records(cluster.bootstrap, "orders") == 1
            freed_at = time.monotonic()
            produce_until_stored(connection, freed_at)
    assert "not healthy" in cluster.wait_for_log("not healthy")
    assert count_records(cluster.bootstrap, "orders") == 2


def produce_until_stored(connection: socket.socket, freed_at: float) -> None:
    """Until one is stored, which is at most HEALED_WITHIN_S after there was room again."""
    while (code := produce_raw(connection, "orders", bytes(one_record_batch()))) != 0:
        assert code == KAFKA_STORAGE_ERROR
        assert time.monotonic() - freed_at < HEALED_WITHIN_S
        time.sleep(0.1)


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
        with heals_by_itself(cluster, "share_coordinator"), no_space(cluster.role_pid("share_coordinator")):
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            (error,) = consumer.commit_sync(TIMEOUT_S).values()
            assert isinstance(error, KafkaException), "an acknowledgement that is not on disk was confirmed"
            wait_for_health(cluster, "share-coordinator", NOT_SERVING)
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "the record did not come again"
            polled = list(consumer.poll(0.5))
            if polled:
                break
        assert polled[0].value() == message.value()
        consumer.acknowledge(polled[0], AcknowledgeType.ACCEPT)
        assert list(consumer.commit_sync(TIMEOUT_S).values()) == [None]


def test_a_coordinator_that_cannot_write(cluster: KshareCluster) -> None:
    with heals_by_itself(cluster, "coordinator"), no_space(cluster.role_pid("coordinator")):
        with pytest.raises(KafkaException, match="KAFKA_STORAGE_ERROR"):
            create_topic(cluster.bootstrap, "orders", 1)
        wait_for_health(cluster, "coordinator", NOT_SERVING)
    create_topic(cluster.bootstrap, "orders", 1)
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
        assert produce_raw(connection, "orders", bytes(one_record_batch())) == 0


@contextmanager
def small_file_system(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """The rest of the file system is taken by another file."""
    ballast = folder / "ballast"
    descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    try:
        with suppress(OSError):
            while True:
                os.write(descriptor, bytes(4096))
        yield
    finally:
        os.close(descriptor)
        ballast.unlink()


def test_a_full_file_system_of_all_roles(tmp_path: Path) -> None:
    """Every record whose storing was confirmed is delivered, and every accept that was confirmed stays."""
    if os.geteuid() != 0:
        unavailable("it mounts a file system, which needs root")
    with small_file_system(tmp_path / "small") as folder, KshareCluster(folder) as cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        read_from_earliest(cluster.bootstrap, "workers")
        stored, accepted, position = 0, set[int](), 0
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "workers",
            "share.acknowledgement.mode": "explicit",
        }
        with (
            socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection,
            ShareConsumer(settings) as consumer,
        ):
            consumer.subscribe(["orders"])
            for _ in range(20):
                stored += produce_raw(connection, "orders", bytes(one_record_batch())) == 0
            with filled(folder):
                while produce_raw(connection, "orders", bytes(one_record_batch())) == 0:
                    stored += 1  # into what the log had reserved
                assert produce_raw(connection, "orders", bytes(one_record_batch())) == KAFKA_STORAGE_ERROR
                accepted |= accept_what_comes(consumer)
                position = len(cluster.log_text())
            produce_until_stored(connection, time.monotonic())
            stored += 1
            cluster.wait_for_log("accepts writes again", after=position)
            deadline = time.monotonic() + 60
            while len(accepted) < stored:
                assert time.monotonic() < deadline, f"{len(accepted)} of {stored} records were accepted"
                accepted |= accept_what_comes(consumer)
        assert accepted == set(range(stored)) and count_records(cluster.bootstrap, "orders") == stored


def accept_what_comes(consumer: ShareConsumer) -> set[int]:
    """The offsets whose accept was confirmed."""
    messages = [message for message in consumer.poll(1.0) if message.error() is None]
    for message in messages:
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    if not messages or any(error is not None for error in consumer.commit_sync(TIMEOUT_S).values()):
        return set()
    return {offset for message in messages if (offset := message.offset()) is not None}
