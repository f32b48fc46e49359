"""The format `kshare` in one Spark session: every way to read, and the state of the records in the group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.captured import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from kshare_spark.share_source.taking import take
from support.clients.delivery import SETTINGS, Reader, new_group, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.spark import shared_spark

QUERY_TIMEOUT_S = 90


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    folder = tmp_path_factory.mktemp("share-streaming")
    with KshareCluster(folder, {**SETTINGS, "group.share.heartbeat.interval.ms": "1000"}) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_spark()


class Queue:
    """A topic with records 0 to `records` - 1 and a group that has not begun."""

    def __init__(self, cluster: KshareCluster, records: int) -> None:
        self.bootstrap = cluster.bootstrap
        self.topic, self.group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
        self.produce(0, records)
        self.options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": self.topic, "group.id": self.group}

    def produce(self, first: int, end: int) -> None:
        produce(self.bootstrap, self.topic, [f"{number:05d}" for number in range(first, end)])

    def stream(self, spark: SparkSession, **options: str) -> DataFrame:
        return spark.readStream.format("kshare").options(**self.options, **options).load()

    def left(self) -> list[tuple[int, int]]:
        """Offsets and delivery counts of what another member gets now."""
        with Reader(self.bootstrap, self.group, self.topic) as reader:
            found = []
            for _ in range(6):
                found += [(message.offset(), message.delivery_count()) for message in reader.poll()]
                reader.settle()
            return found

    def accepted(self, count: int) -> list[int]:
        """The offsets of so many records that another member gets and accepts."""
        with Reader(self.bootstrap, self.group, self.topic) as reader:
            return sorted(message.offset() for message in reader.accept(count))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_available_now_accepts_its_last_batch_too(cluster: KshareCluster, spark: SparkSession, tmp_path: Path) -> None:
    """Twice from one checkpoint: the second run has what came meanwhile, and nothing again."""
    queue = Queue(cluster, 50)
    for run, (batches, end) in enumerate([([20, 20, 10], 50), ([15], 65)]):
        if run:
            queue.produce(50, 65)
        frame = queue.stream(spark, maxRecordsPerTrigger="20", includeHeaders="true")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == batches
        written = spark.read.parquet(str(tmp_path / "out"))
        assert offsets(written) == list(range(end))
    assert written.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        *("headers", "delivery_count", "lock_deadline"),
    ]
    assert queue.left() == []


def test_a_batch_of_a_long_trigger_is_accepted_by_the_listener(
    cluster: KshareCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark itself would say nothing before the next trigger, an hour later; the query is stopped long before."""
    queue = Queue(cluster, 10)
    writer = queue.stream(spark).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "at"))
    query = writer.trigger(processingTime="1 hour").start()
    wait_for(lambda: len(query.recentProgress) > 0, "the first batch", QUERY_TIMEOUT_S)
    query.stop()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
    assert queue.left() == []


def test_a_batch_that_fails_is_released(cluster: KshareCluster, spark: SparkSession, tmp_path: Path) -> None:
    queue = Queue(cluster, 30)

    def fail_in_the_second(frame: DataFrame, batch: int) -> None:
        assert offsets(frame) == list(range(10 * batch, 10 * batch + 10))
        if batch == 1:
            raise RuntimeError("this sink is full")

    frame = queue.stream(spark, maxRecordsPerTrigger="10")
    writer = frame.writeStream.foreachBatch(fail_in_the_second).option("checkpointLocation", str(tmp_path / "at"))
    query = writer.start()
    with pytest.raises(StreamingQueryException, match="this sink is full"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    with Reader(queue.bootstrap, queue.group, queue.topic) as reader:
        assert sorted(message.offset() for message in reader.accept(20)) == list(range(10, 30))


def test_a_plain_read_takes_nothing_away_unless_it_is_told_to(cluster: KshareCluster, spark: SparkSession) -> None:
    queue = Queue(cluster, 20)
    reader = spark.read.format("kshare").options(**queue.options)
    assert offsets(reader.load()) == list(range(20))
    again = reader.load().select("offset", "delivery_count").collect()
    assert sorted(row.offset for row in again) == list(range(20)), "they were released"
    assert offsets(reader.option("acknowledge", "onRead").option("maxRecordsPerTrigger", "12").load()) == list(
        range(12)
    )
    assert queue.accepted(8) == list(range(12, 20))


def test_take_accepts_when_its_block_ends_well(cluster: KshareCluster, spark: SparkSession) -> None:
    queue = Queue(cluster, 20)
    limited = {**queue.options, "maxRecordsPerTrigger": "8", "numPartitions": "3"}
    with pytest.raises(ZeroDivisionError), take(spark, limited) as frame:
        assert offsets(frame) == list(range(8))
        raise ZeroDivisionError
    with take(spark, limited) as frame:
        assert frame.rdd.getNumPartitions() == 3
        assert offsets(frame) == offsets(frame) == list(range(8)), "the same, however often it is evaluated"
    assert queue.accepted(12) == list(range(8, 20))
    with take(spark, queue.options) as frame:
        assert frame.count() == 0


def test_wrong_options_are_told(cluster: KshareCluster, spark: SparkSession) -> None:
    queue = Queue(cluster, 0)
    with pytest.raises(AnalysisException, match=r"option group\.id is missing"):
        spark.readStream.format("kshare").options(**{**queue.options, "group.id": ""}).load()
    with pytest.raises(AnalysisException, match="startingoffsets"):
        queue.stream(spark, startingOffsets="earliest")
