"""Bytes that no client should send: the connection or the request ends, the service does not, nothing is lost."""

from __future__ import annotations

import io
import random
import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.serial import entity_reader, entity_writer

from support.clients.administration import create_topic, read_from_earliest
from support.clients.leaders_and_coordinators import connection_to_leader
from support.clients.raw_kafka import framed, header, one_record_batch, produce_raw, read_frame
from support.clusters.kshare_cluster import ROLES, KshareCluster

TIMEOUT_S = 10.0


@pytest.fixture(autouse=True)
def nothing_crashed_and_clients_are_served(cluster: KshareCluster) -> Iterator[None]:
    """After each test: the same processes still run, and a record still goes through."""
    before = {role: cluster.role_pid(role) for role in ROLES}
    yield
    assert {role: cluster.role_pid(role) for role in ROLES} == before
    topic, group = f"after-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, 1)
    read_from_earliest(cluster.bootstrap, group)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"still here")
    assert producer.flush(30) == 0
    with ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        polled: list[Any] = []
        for _ in range(30):
            polled += list(consumer.poll(1.0))
            if polled:
                break
        assert [message.value() for message in polled] == [b"still here"]


@pytest.fixture
def connection(cluster: KshareCluster) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as opened:
        yield opened


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", 2**31 - 1) + b"x" * 100, id="frame longer than the limit"),
        pytest.param(struct.pack(">i", -5) + b"x" * 100, id="negative length"),
        pytest.param(framed(b""), id="empty frame"),
        pytest.param(framed(b"\0"), id="truncated header"),
        pytest.param(framed(header(9999, 0)), id="unknown request"),
        pytest.param(framed(header(3, 99)), id="unknown version of Metadata"),
        pytest.param(framed(header(78, 1, flexible=True) + b"\xff\xff\xff\xff\x0f"), id="garbage in a ShareFetch"),
        pytest.param(framed(header(3, 1) + struct.pack(">i", 2**31 - 1)), id="an array of two billion names"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4, id="not Kafka at all"),
    ],
)
def test_the_connection_ends(connection: socket.socket, cluster: KshareCluster, sent: bytes) -> None:
    logged = len(cluster.log_text())
    connection.sendall(sent)
    assert read_frame(connection) is None
    assert "closing connection " in cluster.wait_for_log("closing connection ", after=logged)


def test_random_bytes(cluster: KshareCluster) -> None:
    source = random.Random(1)
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S) as connection:
            key, version = source.choice([0, 1, 2, 3, 10, 18, 19, 32, 44, 76, 78, 79]), source.randrange(0, 14)
            body = source.randbytes(source.randrange(0, 200))
            connection.sendall(framed(struct.pack(">hhih", key, version, 1, 0) + body))
            connection.shutdown(socket.SHUT_WR)
            while read_frame(connection) is not None:
                pass


def test_an_unknown_version_of_api_versions_is_answered_with_its_known_ones(connection: socket.socket) -> None:
    connection.sendall(framed(header(18, 99, flexible=True)))
    answer = read_frame(connection)
    assert answer is not None
    correlation_id, error_code, count, api_key, least, greatest = struct.unpack(">ihihhh", answer)
    assert (correlation_id, error_code) == (7, 35)
    assert (count, api_key, least, greatest) == (1, 18, 0, 4)


def test_invalid_batches_are_refused_with_kafkas_codes(cluster: KshareCluster) -> None:
    topic = f"bad-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, 1)
    flipped, truncated, huge_delta = one_record_batch(), one_record_batch()[:-3], one_record_batch()
    flipped[-1] ^= 1
    struct.pack_into(">i", huge_delta, 23, 2**31 - 1)
    with connection_to_leader(cluster.bootstrap, topic) as connection:
        assert produce_raw(connection, topic, bytes(flipped)) == 2  # CORRUPT_MESSAGE
        assert produce_raw(connection, topic, bytes(truncated)) in (2, 87)  # CORRUPT_MESSAGE or INVALID_RECORD
        assert produce_raw(connection, topic, bytes(huge_delta)) in (2, 87)
        unknown = produce_raw(connection, "no-such-topic", bytes(one_record_batch()), known_within_s=0.5)
        assert unknown == 3  # UNKNOWN_TOPIC_OR_PARTITION
        assert produce_raw(connection, topic, bytes(one_record_batch())) == 0


def test_metadata_of_an_unknown_topic(connection: socket.socket) -> None:
    body = io.BytesIO()
    topic: Any = MetadataRequestTopic(topic_id=None, name="no-such-topic")  # type: ignore[arg-type]
    entity_writer(MetadataRequest)(
        body,
        MetadataRequest(topics=(topic,), allow_auto_topic_creation=False, include_topic_authorized_operations=False),
    )
    connection.sendall(framed(header(3, 12, flexible=True) + body.getvalue()))
    answer = read_frame(connection)
    assert answer is not None
    response, _ = entity_reader(MetadataResponse)(answer, 5)
    assert [int(found.error_code) for found in response.topics] == [3]
