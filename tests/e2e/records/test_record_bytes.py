"""Records pass through unchanged: every compression, nulls, empty ones, headers, sizes up to the last byte allowed."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kshare_wire.record_batches import COMPRESSION_NAMES, check_crc, read_headers
from support.clients.delivery import TIMEOUT_S, Reader, batching_producer, new_group, new_topic
from support.clients.leaders_and_coordinators import connection_to_leader
from support.clients.raw_kafka import produce_raw
from support.clients.raw_records import fetch_raw, share_fetch_raw
from support.clients.state_of_group import topic_id_of
from support.kafka.java_clients import JavaClients, JavaRecord
from support.wire.record_building import build_batch

NOW_MS = 1_790_000_000_123
DEFAULT_MAX_MESSAGE_BYTES = 1048588
HEADER_BYTES = 61
MESSAGE_TOO_LARGE = 10
_random = random.Random(7)

RECORDS = [
    JavaRecord(b"", key=None, timestamp_ms=NOW_MS),
    JavaRecord(None, key=b"a tombstone", timestamp_ms=NOW_MS + 1),
    JavaRecord(None, key=None, timestamp_ms=NOW_MS - 86_400_000),
    JavaRecord(b"", key=b"", timestamp_ms=1),
    JavaRecord(b"value", key=b"key", timestamp_ms=NOW_MS + 2),
    JavaRecord(
        b"with headers",
        headers=(("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None), ("", b"no name"), ("größe ☃", b"\xff\x00")),
        timestamp_ms=NOW_MS + 3,
    ),
    JavaRecord(bytes(100_000), timestamp_ms=NOW_MS + 4),
    JavaRecord(_random.randbytes(60_000), key=_random.randbytes(300), timestamp_ms=NOW_MS + 5),
]
Contents = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClients]:
    with JavaClients() as clients:
        yield clients


def of_java(record: JavaRecord) -> Contents:
    return record.key, record.value, record.headers, record.timestamp_ms


def of_message(message: Any) -> Contents:
    return message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1]


def send_with_confluent(bootstrap: str, topic: str, records: list[JavaRecord], **settings: Any) -> list[int | None]:
    """In one batch, since a small one is not compressed; the error code of each record, None where it was confirmed."""
    results: list[int | None] = []

    def confirmed(error: KafkaError | None, message: object) -> None:
        results.append(None if error is None else error.code())

    producer = batching_producer(bootstrap, topic, settings)
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            timestamp=record.timestamp_ms or 0,
            partition=0,
            on_delivery=confirmed,
        )
    assert producer.flush(TIMEOUT_S) == 0
    return results


def read_by_everybody(java: JavaClients, bootstrap: str, topic: str, count: int) -> dict[str, list[Contents]]:
    """What each kind of consumer finds in partition 0."""
    found: dict[str, list[Contents]] = {}
    with Reader(bootstrap, new_group(bootstrap), topic) as reader:
        found["confluent ShareConsumer"] = [of_message(message) for message in reader.accept(count)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found["confluent Consumer"] = [of_message(message) for message in consumer.consume(count, TIMEOUT_S)]
    consumer.close()
    found["java KafkaConsumer"] = [of_java(record) for record in java.consume(bootstrap, topic, count)]
    with java.member(bootstrap, new_group(bootstrap), [topic]) as member:
        records: list[JavaRecord] = []
        while len(records) < count:
            records.extend(polled := member.take())
            member.acknowledge(polled)
            assert member.commit_sync() == {f"{topic}-0": "ok"}
        found["java KafkaShareConsumer"] = [of_java(record) for record in records]
    return found


@pytest.mark.parametrize("compression", COMPRESSION_NAMES)
@pytest.mark.parametrize("producer", ["confluent", "java"])
def test_records_come_back_as_they_were_sent(
    java: JavaClients, bootstrap: str, compression: str, producer: str
) -> None:
    topic = new_topic(bootstrap, retention_ms="-1")
    if producer == "confluent":
        settings = {"compression.type": compression}
        assert send_with_confluent(bootstrap, topic, RECORDS, **settings) == [None] * len(RECORDS)
    else:
        opened = java.producer(bootstrap, compression_type=compression, linger_ms=50, batch_size=1_000_000)
        assert opened.send(topic, RECORDS) == list(range(len(RECORDS)))
        opened.close()
    expected = [of_java(record) for record in RECORDS]
    for reader, contents in read_by_everybody(java, bootstrap, topic, len(RECORDS)).items():
        assert contents == expected, reader
    with connection_to_leader(bootstrap, topic) as connection:
        stored = fetch_raw(connection, topic)
    headers = read_headers(stored)
    assert COMPRESSION_NAMES[headers[0].compression] == compression
    for header in headers:
        check_crc(stored, header)


@pytest.mark.parametrize("compression", COMPRESSION_NAMES)
def test_the_compression_type_of_a_topic_is_that_of_its_batches(
    java: JavaClients, bootstrap: str, compression: str
) -> None:
    topic = new_topic(bootstrap, retention_ms="-1", compression_type=compression.replace("none", "uncompressed"))
    settings = {"compression.type": "zstd" if compression == "gzip" else "gzip"}
    assert send_with_confluent(bootstrap, topic, RECORDS, **settings) == [None] * len(RECORDS)
    assert [of_java(record) for record in java.consume(bootstrap, topic, len(RECORDS))] == list(map(of_java, RECORDS))
    with connection_to_leader(bootstrap, topic) as connection:
        stored = fetch_raw(connection, topic)
    for header in read_headers(stored):
        assert COMPRESSION_NAMES[header.compression] == compression
        check_crc(stored, header)


@pytest.mark.parametrize("compression", range(len(COMPRESSION_NAMES)))
def test_a_stored_batch_is_the_producers_but_for_offset_and_epoch(bootstrap: str, compression: int) -> None:
    topic, group = new_topic(bootstrap, retention_ms="-1"), new_group(bootstrap)
    batches = [build_batch([b"", b"x" * 5000, bytes([index])], compression=compression) for index in range(2)]
    with connection_to_leader(bootstrap, topic) as connection, Reader(bootstrap, group, topic) as reader:
        for batch in batches:
            assert produce_raw(connection, topic, batch) == 0
        stored = fetch_raw(connection, topic)
        assert len(reader.accept(6)) == 6
        for batch in batches:
            assert produce_raw(connection, topic, batch) == 0
        topic_id = uuid.UUID(bytes=topic_id_of(bootstrap, topic))
        shared = share_fetch_raw(connection, group, uuid.uuid4(), topic_id)
    assert bare(stored) == [bare(batch)[0] for batch in batches]
    assert [header.base_offset for header in read_headers(stored)] == [0, 3]
    assert bare(shared) == [bare(batch)[0] for batch in batches]
    assert [header.base_offset for header in read_headers(shared)] == [6, 9]


def bare(records: bytes) -> list[bytes]:
    """Each batch without its base offset and leader epoch, which are the cluster's."""
    found = []
    position = 0
    while position < len(records):
        end = position + 12 + struct.unpack_from(">i", records, position + 8)[0]
        found.append(records[position + 8 : position + 12] + records[position + 16 : end])
        position = end
    return found


def batch_of_size(size: int, compression: int) -> bytes:
    """A batch of one record that cannot be compressed, and is exactly so long."""
    data = random.Random(size).randbytes(size)
    for length in range(size - HEADER_BYTES, 0, -1):
        batch = build_batch([data[:length]], compression=compression)
        if len(batch) == size:
            return batch
        assert len(batch) > size - 100, f"no batch of {size} bytes with compression {compression}"
    raise AssertionError("too small")


@pytest.mark.parametrize("compression", range(len(COMPRESSION_NAMES)))
def test_a_batch_may_be_as_long_as_max_message_bytes(bootstrap: str, compression: int) -> None:
    limit = 20_000
    topic = new_topic(bootstrap, max_message_bytes=str(limit))
    largest, too_large = batch_of_size(limit, compression), batch_of_size(limit + 1, compression)
    with connection_to_leader(bootstrap, topic) as connection:
        assert produce_raw(connection, topic, too_large) == MESSAGE_TOO_LARGE
        assert produce_raw(connection, topic, largest) == 0
        assert bare(fetch_raw(connection, topic)) == bare(largest)
    with Reader(bootstrap, new_group(bootstrap), topic) as reader:
        assert [len(message.value()) > limit - 200 for message in reader.accept(1)] == [True]


@pytest.mark.parametrize("limit", [1000, DEFAULT_MAX_MESSAGE_BYTES])
def test_producers_may_send_a_record_up_to_max_message_bytes(java: JavaClients, bootstrap: str, limit: int) -> None:
    topic = new_topic(bootstrap, max_message_bytes=str(limit))
    length = next(n for n in range(limit - HEADER_BYTES, 0, -1) if len(build_batch([bytes(n)])) == limit)
    fits, too_large = JavaRecord(bytes(length)), JavaRecord(bytes(length + 1))
    generous = {"message.max.bytes": 2 * limit}
    assert send_with_confluent(bootstrap, topic, [fits], **generous) == [None]
    assert send_with_confluent(bootstrap, topic, [too_large], **generous) == [KafkaError.MSG_SIZE_TOO_LARGE]
    producer = java.producer(bootstrap, max_request_size=2 * limit + 10_000)
    assert producer.send(topic, [fits]) == [1]
    assert producer.send(topic, [too_large]) == ["RecordTooLargeException"]
    producer.close()
    for reader, contents in read_by_everybody(java, bootstrap, topic, 2).items():
        assert [value for _, value, _, _ in contents] == [bytes(length)] * 2, reader
