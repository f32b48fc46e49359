"""A running source without Spark, against real roles: locks, restarts, lost leaders, and the records that are read.

`Source` does what Spark does with a source: asks for the next offset, reads its runs, says that it is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from kshare_spark.share_source.cluster import Cluster, ClusterError
from kshare_spark.share_source.control import tell
from kshare_spark.share_source.offset import ShareOffset
from kshare_spark.share_source.options import read_options
from kshare_spark.share_source.reading import DataLoss, close_connections, read_runs
from kshare_spark.share_source.stream_reader import Progress
from support.clients.administration import delete_topic
from support.clients.delivery import ACCEPT, RELEASE, SETTINGS, Reader, new_group, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster

LOCK_S = 4
SHORT_LOCK = {"record_lock_duration_ms": str(LOCK_S * 1000)}
QUICK = {"kafka.fetch.max.wait.ms": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("share-progress"), SETTINGS) as running:
        yield running
    close_connections()


class Source:
    """One life of a query's source."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "group.id": group, "subscribe": topic, **QUICK, **options}
        self.options = read_options(given)
        self.progress = Progress(self.options)
        self.start: dict[str, Any] = ShareOffset().to_json()

    def next(self, limit: ReadLimit | None = None) -> ShareOffset | None:
        """The next batch, which Spark would note and read; None where nothing is there now."""
        found = self.progress.next(self.start, limit or ReadAllAvailable())
        if found == self.start:
            return None
        self.start = found
        return ShareOffset.from_json(found)

    def take(self, limit: ReadLimit | None = None) -> ShareOffset:
        before = self.start
        wait_for(lambda: self.next(limit) is not None, "a batch")
        assert self.start != before
        return ShareOffset.from_json(self.start)

    def rows(self, offset: ShareOffset) -> list[dict[str, Any]]:
        batches = list(read_runs(self.options, offset.runs, offset.lock_deadline_ms))
        return pa.Table.from_batches(batches).to_pylist() if batches else []

    def values(self, offset: ShareOffset) -> list[str]:
        return [row["value"].decode() for row in self.rows(offset)]


@contextmanager
def running(bootstrap: str, group: str, topic: str, **options: str) -> Iterator[Source]:
    source = Source(bootstrap, group, topic, **options)
    try:
        yield source
    finally:
        source.progress.close(0)


def numbered(first: int, last: int) -> list[str]:
    return [f"{number:05d}" for number in range(first, last)]


def nobody_gets_anything(bootstrap: str, group: str, topic: str, *, for_s: float) -> None:
    with Reader(bootstrap, group, topic) as reader:
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            found = reader.poll()
            assert not found, f"{len(found)} records came, the first at offset {found[0].offset()}"


def test_a_batch_is_read_whole_and_locked_for_others_while_it_runs(cluster: KshareCluster) -> None:
    """Locks of some seconds are renewed for as long as the batch takes; then it is accepted."""
    topic, group = new_topic(cluster.bootstrap, 2), new_group(cluster.bootstrap, **SHORT_LOCK)
    for partition in (0, 1):
        produce(cluster.bootstrap, topic, numbered(partition * 100, partition * 100 + 100), partition)
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take()
        if offset.runs.records < 200:  # the second partition was assigned a moment later
            assert offset.runs.records == 100
            source.progress.finish(offset)
            assert source.take().runs.records == 100
        else:
            assert sorted(source.values(offset)) == numbered(0, 200)
        rows = source.rows(offset)
        assert {row["delivery_count"] for row in rows} == {1}
        assert all(row["lock_deadline"].timestamp() > row["timestamp"].timestamp() for row in rows)
        nobody_gets_anything(cluster.bootstrap, group, topic, for_s=1.5 * LOCK_S)
        assert source.next() is None, "the next call says that the batch is done"
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=LOCK_S + 1.0)


def test_limits(cluster: KshareCluster) -> None:
    """Rows exactly, though the producer's batches are larger; bytes by the fetch that reaches them."""
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 100))
    with running(cluster.bootstrap, group, topic) as source:
        assert source.values(source.take(ReadMaxRows(7))) == numbered(0, 7)
        assert source.values(source.take(ReadMaxRows(33))) == numbered(7, 40)
        assert source.values(source.take(ReadMaxBytes(1))) == numbered(40, 100)


def test_what_is_not_done_is_released_when_the_source_stops(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 20))
    with running(cluster.bootstrap, group, topic) as source:
        source.take(ReadMaxRows(5))
        source.take(ReadMaxRows(5))
    with Reader(cluster.bootstrap, group, topic) as reader:
        assert sorted(message.offset() for message in reader.accept(15)) == list(range(5, 20))


def test_the_listeners_word_accepts_a_batch(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 10))
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take()
        assert tell(offset.session, {"finished": offset.batch + 1}), "of another batch: nothing happens"
        assert tell(offset.session, {"finished": offset.batch})
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=1.0)


def test_a_stop_waits_for_the_listeners_last_word(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 10))
    source = Source(cluster.bootstrap, group, topic)
    offset = source.take()
    closing = threading.Thread(target=source.progress.close, args=(30.0,))
    closing.start()
    assert tell(offset.session, {"finished": offset.batch})
    closing.join(20.0)
    assert not closing.is_alive()
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=1.0)


@contextmanager
def hung(source: Source) -> Iterator[None]:
    """The driver's thread does nothing for the length of the block: no renewals, no heartbeats."""
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(60.0)

    caller = threading.Thread(target=source.progress._keeper._call, args=(hang,))
    caller.start()
    assert begun.wait(10.0)
    try:
        yield
    finally:
        go_on.set()
        caller.join()


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE], ids=["another member accepts", "another member releases"])
def test_a_lock_that_expires_in_the_middle_of_a_batch(cluster: KshareCluster, kind: Any) -> None:
    """Nothing is accepted that is not held; what comes back is accepted then, and not delivered again."""
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap, **SHORT_LOCK)
    produce(cluster.bootstrap, topic, numbered(0, 10))
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take()
        with hung(source), Reader(cluster.bootstrap, group, topic) as reader:
            found: list[Any] = []
            while len(found) < 10:
                found += reader.take()
                assert {message.delivery_count() for message in found} == {2}
                if kind == ACCEPT or len(found) == 10:
                    reader.settle(kind)
        # The driver is back, and the batch ends well.
        produce(cluster.bootstrap, topic, numbered(10, 12))
        after = source.take()
        assert source.values(after) == numbered(10, 12)
        assert after.batch == offset.batch + 1
        if kind == ACCEPT:
            assert after.unaccepted == offset.runs
        else:
            assert not after.unaccepted
        assert source.next() is None
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=LOCK_S + 1.0)


def test_a_restart_reads_the_same_records_and_delivers_them_once(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 30))
    with running(cluster.bootstrap, group, topic) as source:
        source.take(ReadMaxRows(10))
        noted = source.take(ReadMaxRows(10))
        checkpoint = source.start
    with running(cluster.bootstrap, group, topic) as restarted:
        assert restarted.values(ShareOffset.from_json(checkpoint)) == numbered(10, 20) == source.values(noted)
        restarted.start = checkpoint
        after = restarted.take()
        assert restarted.values(after) == numbered(20, 30)
        assert not after.unaccepted, "the replayed ones came again and were accepted then"
        restarted.progress.finish(after)
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=1.0)


def test_a_replay_of_what_another_member_has_accepts_nothing(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 10))
    with running(cluster.bootstrap, group, topic) as source:
        source.take()
        checkpoint = source.start
    with Reader(cluster.bootstrap, group, topic) as reader:
        held = reader.take()
        with running(cluster.bootstrap, group, topic) as restarted:
            restarted.start = checkpoint
            assert restarted.values(ShareOffset.from_json(checkpoint)) == numbered(0, 10)
            assert restarted.next() is None
            reader.settle(ACCEPT, held)  # raises where somebody else had acknowledged them
            reader.accept(10 - len(held))


def test_a_leader_that_is_killed_while_a_batch_runs(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 20))
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take(ReadMaxRows(10))
        cluster.wait_until_gone(cluster.kill_role("leader"))
        assert source.values(offset) == numbered(0, 10), "executors wait for the leader"
        after = source.take()
        assert source.values(after) == numbered(10, 20)
        assert not after.unaccepted
        source.progress.finish(after)
    nobody_gets_anything(cluster.bootstrap, group, topic, for_s=1.0)


def test_available_now_ends_where_the_logs_ended(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 10))
    with running(cluster.bootstrap, group, topic) as source:
        asking = Cluster(source.options.client)
        source.progress.stop_at(asking.end_offsets([topic]))
        asking.close()
        produce(cluster.bootstrap, topic, numbered(10, 20))
        assert source.values(source.take()) == numbered(0, 10)
        assert source.next() is None
        assert source.next() is None
    with Reader(cluster.bootstrap, group, topic) as reader:
        found = reader.accept(10)
    assert sorted(message.offset() for message in found) == list(range(10, 20))
    assert max(message.delivery_count() for message in found) <= 2, "held back once, not for each batch"


def test_records_of_every_kind(cluster: KshareCluster) -> None:
    """Keys, nulls, headers, compression, transactions that ended either way, and more than one Arrow batch."""
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap, isolation_level="read_committed")
    for index, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
        headers: list[tuple[str, str | bytes | None]] = [("kind", codec.encode()), ("none", None)]
        producer.produce(topic, value=codec.encode() * 100, key=b"%d" % index, headers=headers, timestamp=1700000000123)
        producer.produce(topic, value=None, key=None)
        producer.flush(20.0)
    writer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"writer-of-{topic}"})
    writer.init_transactions(20.0)
    for value in ("aborted", "committed"):
        writer.begin_transaction()
        writer.produce(topic, value=value)
        writer.flush(20.0)
        writer.commit_transaction(20.0) if value == "committed" else writer.abort_transaction(20.0)
    produce(cluster.bootstrap, topic, numbered(0, 1000))
    found: list[dict[str, Any]] = []
    with running(cluster.bootstrap, group, topic, includeHeaders="true") as source:
        while len(found) < 1011:
            found += source.rows(source.take())
        source.next()
    assert len(found) == 1011 and [row["offset"] for row in found] == sorted(row["offset"] for row in found)
    first = found[0]
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"0", b"none" * 100, topic, 0)
    assert first["timestamp"].timestamp() == 1700000000.123 and first["timestampType"] == 0
    assert first["headers"] == [{"key": "kind", "value": b"none"}, {"key": "none", "value": None}]
    assert [row["value"] for row in found[:10:2]] == [
        codec * 100 for codec in (b"none", b"gzip", b"snappy", b"lz4", b"zstd")
    ]
    assert found[1]["key"] is None and found[1]["value"] is None and found[1]["headers"] == []
    assert [row["value"] for row in found[10:12]] == [b"committed", b"00000"]


def test_records_that_the_log_has_removed(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 20))
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.delete_records([TopicPartition(topic, 0, 8)]).values():
            future.result(20.0)
        with pytest.raises(DataLoss, match=rf"offsets 0 to 7 of {topic}-0 .* failOnDataLoss"):
            source.values(offset)
    with running(cluster.bootstrap, group, topic, failOnDataLoss="false") as lenient:
        assert lenient.values(offset) == numbered(8, 20)


def test_a_batch_of_a_topic_that_was_deleted(cluster: KshareCluster) -> None:
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered(0, 20))
    options = {"kafka.default.api.timeout.ms": "2000"}
    with running(cluster.bootstrap, group, topic) as source:
        offset = source.take()
    delete_topic(cluster.bootstrap, topic)
    other = new_topic(cluster.bootstrap)
    with (
        running(cluster.bootstrap, group, other, **options) as strict,
        pytest.raises(DataLoss, match=rf"offsets 0 to 19 of {topic}-0 .* failOnDataLoss"),
    ):
        strict.values(offset)
    with running(cluster.bootstrap, group, other, failOnDataLoss="false", **options) as lenient:
        assert lenient.values(offset) == []


def test_a_topic_that_does_not_exist(cluster: KshareCluster) -> None:
    options = {"kafka.default.api.timeout.ms": "500"}
    with (
        running(cluster.bootstrap, new_group(cluster.bootstrap), "nowhere", **options) as source,
        pytest.raises(ClusterError, match="topic nowhere does not exist"),
    ):
        source.next()


def test_a_cluster_that_is_not_there() -> None:
    options = {"kafka.default.api.timeout.ms": "300"}
    with (
        running("127.0.0.1:1", "group", "topic", **options) as source,
        pytest.raises(ClusterError, match=r"cannot connect to 127\.0\.0\.1:1"),
    ):
        source.next()
