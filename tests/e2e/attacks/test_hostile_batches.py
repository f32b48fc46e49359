"""Batches that are an attack, or that an older version stored: good clients beside them go on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from kshare_core.errors import ErrorCode
from kshare_leader.log import keys
from kshare_leader.log.old_batches import MARK
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_wire.record_batches import patch, read_header
from support.clients.delivery import new_group, new_topic
from support.clients.good_client import SAMPLES_AT_LEAST, GoodClient, resident_bytes
from support.clients.raw_kafka import produce_for_answer, produce_raw, record_with_key
from support.clusters.kshare_cluster import KshareCluster
from support.environment.memory_folder import memory_folder
from support.leader.log.large_batches import large_batch
from support.wire.raw_batches import plain_batch, record, zstd_bomb

P99_LIMIT_MS = 250.0
MIB = 1024 * 1024
ATTACK_S = 8.0
MEMORY_GROWTH_LIMIT_BYTES = 512 * MIB
"""Two batches of 128 MiB after decompression may be open at once: one is validated, one is read."""
READ_TIMEOUT_S = 60.0


def repeat(work: Callable[[], None], until: float, failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            while time.monotonic() < until:
                work()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.quiet
def test_a_good_client_beside_batches_of_millions_of_records() -> None:
    """Produced to a compacted topic, and looked up by time; each kept the leader for 12 s once."""
    bomb, now_ms = zstd_bomb(), time.time_ns() // 1_000_000
    failures: list[BaseException] = []
    refused: list[ErrorCode] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(KshareCluster(stack.enter_context(memory_folder())))
        client = stack.enter_context(GoodClient(cluster.bootstrap))
        compacted, plain = new_topic(cluster.bootstrap, cleanup_policy="compact"), new_topic(cluster.bootstrap)
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), 60)) for _ in range(3)]
        assert produce_raw(connections[0], compacted, record_with_key()) == ErrorCode.NONE
        assert produce_raw(connections[0], plain, large_batch(first_timestamp_ms=now_ms)) == ErrorCode.NONE
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "times"})
        stack.callback(consumer.close)
        before = resident_bytes(cluster.role_pid("leader"))
        with client.measured() as attacked:
            until = time.monotonic() + ATTACK_S
            attacks: list[Callable[[], None]] = [
                lambda: refused.append(produce_for_answer(connections[0], compacted, bomb).code),
                lambda: refused.append(produce_for_answer(connections[1], compacted, bomb).code),
                lambda: refused.append(produce_for_answer(connections[2], plain, bomb).code),
                lambda: _look_up(consumer, plain, now_ms),
            ]
            for thread in [repeat(attack, until, failures) for attack in attacks]:
                thread.join()
        grown = resident_bytes(cluster.role_pid("leader"), peak=True) - before
        with client.measured() as afterwards:
            client.wait_for_records(SAMPLES_AT_LEAST + 10)
    assert not failures
    assert refused and set(refused) == {ErrorCode.UNKNOWN_SERVER_ERROR}, "their offset deltas are wrong"
    assert grown < MEMORY_GROWTH_LIMIT_BYTES, f"{grown // MIB} MiB"
    assert attacked.p99_ms < P99_LIMIT_MS, f"during the attack: {attacked}"
    assert afterwards.p99_ms < P99_LIMIT_MS, f"after it: {afterwards}"


def _look_up(consumer: Consumer, topic: str, timestamp_ms: int) -> None:
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], 30)
    assert found.offset == 0


def test_records_beside_a_malformed_batch_of_an_older_version_are_delivered(tmp_path: Path) -> None:
    """A batch whose one record is longer than the batch, then 100 good records of another producer."""
    cluster = KshareCluster(tmp_path)
    with cluster:
        topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        with socket.create_connection(("127.0.0.1", cluster.port), 30) as connection:
            first_ms = time.time_ns() // 1_000_000
            placeholder = plain_batch(record(0) + record(1), count=2, first_timestamp_ms=first_ms)
            assert produce_raw(connection, topic, placeholder) == ErrorCode.NONE
        for number in range(100):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(30) == 0
        assert cluster.stop() == 0
        malformed = plain_batch(record(0, length_added=1000) + record(1), count=2, first_timestamp_ms=first_ms)
        _store_as_an_older_version(tmp_path, placeholder, malformed)
        cluster.start()
        values: list[bytes] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group}) as consumer:
            consumer.subscribe([topic])
            while len(values) < 100 and time.monotonic() < deadline:
                values += [message.value() or b"" for message in consumer.poll(1.0) if message.error() is None]
        assert sorted(values) == sorted(b"%d" % number for number in range(100))
        assert "offsets 0 to 1 are archived for share groups" in cluster.log_text()


def _store_as_an_older_version(folder: Path, placeholder: bytes, batch: bytes) -> None:
    """Puts `batch` in the place of the stored `placeholder`, and takes the mark of its log away."""
    (current,) = (folder / "data").rglob("leader/CURRENT")
    store = RocksStore(current.parent)
    ((key, data),) = [row for row in store.scan(keys.LOG, b"") if row[1][61:] == placeholder[61:]]
    header = read_header(data)
    prefix = key[:-8]
    changed = patch(batch, header.base_offset, header.partition_leader_epoch)
    store.write([Write(keys.LOG, key, changed), Write(keys.POSITIONS, prefix + MARK, None)])
    store.close()
