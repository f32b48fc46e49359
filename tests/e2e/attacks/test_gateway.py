"""Clients that cost much: each attack beside a good client, with bounds on the processes' memory."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic, wait_until_known
from support.clients.good_client import MEASURED_S, GoodClient, resident_bytes
from support.clients.leaders_and_coordinators import address_of_leader
from support.clients.raw_kafka import framed, header, read_frame
from support.clusters.kshare_cluster import KshareCluster
from support.environment.memory_folder import memory_folder
from support.gateway.harness import build, request_frame

MEBIBYTE = 1024 * 1024
BUDGET_BYTES = 96 * MEBIBYTE
SLACK_BYTES = 192 * MEBIBYTE
"""The interpreter itself, a frame and an answer beyond the budget, copies on the way, and what malloc keeps."""
P99_LIMIT_MS = 250


@pytest.fixture
def attacked() -> Iterator[KshareCluster]:
    """A cluster for one attack: what an allocator keeps after one is no part of the next one's peak."""
    settings = {
        "kshare.queued.max.bytes": str(BUDGET_BYTES),
        "kshare.gateway.stalled.connection.ms": "2000",
        "kshare.gateway.cache.bytes": str(16 * MEBIBYTE),
        "kshare.leader.tail.bytes": str(64 * MEBIBYTE),
    }
    with memory_folder() as folder, KshareCluster(folder, settings) as cluster:
        yield cluster


@pytest.fixture
def good_client(attacked: KshareCluster) -> Iterator[GoodClient]:
    with GoodClient(attacked.bootstrap) as client:
        yield client


def connect(cluster: KshareCluster, receive_buffer: int | None = None, address: str = "") -> socket.socket:
    """To `address`, or to the one that clients begin with."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    host, _, port = (address or cluster.bootstrap).rpartition(":")
    connection.connect((host, int(port)))
    return connection


def send_what_is_taken(connections: list[socket.socket], data: bytes, length: int, for_s: float) -> int:
    """Sends up to `length` bytes on each connection, as far as they are taken; how many were."""
    deadline = time.monotonic() + for_s
    view = memoryview(data)
    left = {connection: length for connection in connections}
    for connection in connections:
        connection.setblocking(False)
    while time.monotonic() < deadline and any(left.values()):
        for connection, size in left.items():
            if size:
                try:
                    begin = (length - size) % len(data)
                    left[connection] -= connection.send(view[begin : begin + size])
                except BlockingIOError:
                    continue
                except OSError:
                    left[connection] = 0
        time.sleep(0.001)
    return length * len(left) - sum(left.values())


def assert_bounded(cluster: KshareCluster) -> None:
    """No process has held more than its budget and the slack, at any time since it was started for this attack."""
    for role in ("gateway", "leader"):
        held = resident_bytes(cluster.role_pid(role), peak=True)
        assert held < BUDGET_BYTES + SLACK_BYTES, f"{role}: {held // MEBIBYTE} MiB"


@pytest.mark.quiet
def test_half_sent_frames(attacked: KshareCluster, good_client: GoodClient) -> None:
    """30 clients send half of a Produce of 90 MB each, then nothing."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(attacked)) for _ in range(30)]
        for connection in connections:
            connection.sendall(struct.pack(">i", 90 * MEBIBYTE) + struct.pack(">hhih", 0, 9, 1, 1) + b"t\0")
        with good_client.measured() as figures:
            sent = send_what_is_taken(connections, bytes(MEBIBYTE), 45 * MEBIBYTE, MEASURED_S)
    assert sent < 30 * 45 * MEBIBYTE
    assert_bounded(attacked)
    assert figures.p99_ms < P99_LIMIT_MS, figures


@pytest.mark.quiet
def test_fetch_responses_that_the_client_does_not_read(attacked: KshareCluster, good_client: GoodClient) -> None:
    """150 clients fetch 50 MB each and never read."""
    create_topic(attacked.bootstrap, "large", 1)
    producer = Producer({"bootstrap.servers": attacked.bootstrap, "batch.size": 1_000_000, "linger.ms": 50})
    for _ in range(900):
        producer.produce("large", bytes(65_536))
    assert producer.flush(60) == 0
    request = build(
        ApiKey.FETCH,
        11,
        {
            "replica_id": -1,
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 50 * MEBIBYTE,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": "large",
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "log_start_offset": -1,
                            "partition_max_bytes": 50 * MEBIBYTE,
                        }
                    ],
                }
            ],
            "rack_id": "",
        },
    )
    leader = address_of_leader(attacked.bootstrap, "large")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(attacked, 4096, leader)) for _ in range(150)]
        with good_client.measured() as figures:
            for connection in connections:
                connection.sendall(b"".join(request_frame(ApiKey.FETCH, 11, number, request) for number in range(3)))
            time.sleep(MEASURED_S)
    assert_bounded(attacked)
    assert figures.p99_ms < P99_LIMIT_MS, figures


@pytest.mark.quiet
def test_metadata_of_many_partitions(attacked: KshareCluster, good_client: GoodClient) -> None:
    """A client pipelines 64 Metadata requests over many partitions and goes away."""
    admin = AdminClient({"bootstrap.servers": attacked.bootstrap})
    admin.create_topics([NewTopic("wide", 5_000, 1)], request_timeout=30)["wide"].result(30)
    request = build(ApiKey.METADATA, 12, {"topics": None})
    frames = b"".join(request_frame(ApiKey.METADATA, 12, number, request) for number in range(64))
    wait_until_known(attacked.bootstrap, "wide", 5_000)
    with good_client.measured() as figures:
        until = time.monotonic() + MEASURED_S
        while time.monotonic() < until:
            with connect(attacked) as connection:
                connection.sendall(frames)
                time.sleep(0.2)
        with connect(attacked) as connection:
            connection.sendall(frames)
            for _ in range(64):
                assert read_frame(connection) is not None
    assert_bounded(attacked)
    assert figures.p99_ms < P99_LIMIT_MS, figures


def names_of_topics(count: int) -> bytes:
    """A Metadata v4 that asks for so many topics."""
    names = b"".join(struct.pack(">h", 7) + b"t%06d" % number for number in range(count))
    return framed(header(ApiKey.METADATA, 4) + struct.pack(">i", count) + names + b"\0")


def offsets_to_commit(count: int) -> bytes:
    """An OffsetCommit v2 of a group without members, of so many partitions of one topic."""
    start = struct.pack(">h", 5) + b"group" + struct.pack(">i", -1) + struct.pack(">h", 0) + struct.pack(">q", -1)
    topic = struct.pack(">ih", 1, 5) + b"large" + struct.pack(">i", count)
    partitions = b"".join(struct.pack(">iqh", number, 1, -1) for number in range(count))
    return framed(header(ApiKey.OFFSET_COMMIT, 2) + start + topic + partitions)


@pytest.mark.quiet
def test_arrays_of_200_000_elements(attacked: KshareCluster, good_client: GoodClient) -> None:
    """Six clients pipeline requests of 200,000 elements; when they have gone, so has their work."""
    names, offsets = names_of_topics(200_000), offsets_to_commit(200_000)
    with good_client.measured() as figures:
        until = time.monotonic() + MEASURED_S
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(attacked)) for _ in range(6)]
            send_what_is_taken(connections[:3], names, 4 * len(names), MEASURED_S / 2)
            send_what_is_taken(connections[3:], offsets, 4 * len(offsets), MEASURED_S / 2)
            time.sleep(max(1, until - time.monotonic()))
        gone = time.monotonic()
        with connect(attacked) as connection:
            connection.sendall(names_of_topics(1_000))
            assert read_frame(connection) is not None
        answered_after_s = time.monotonic() - gone
    assert_bounded(attacked)
    assert answered_after_s < 2, "requests of clients that have gone are dropped"
    assert figures.p99_ms < P99_LIMIT_MS, figures
