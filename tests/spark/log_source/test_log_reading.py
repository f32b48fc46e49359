"""Ranges and the log source's readers on a real cluster, called as Spark calls them, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kshare_kafka_client.properties import InvalidOption
from kshare_kafka_client.range_reader import OffsetRange, OffsetsLost, RangeReader, read_range
from kshare_kafka_client.topics import KafkaUnavailable, Partition, UnknownTopic, end_offsets, offsets_at
from kshare_spark.log_source import LogDataSource
from kshare_spark.log_source.data_source import LogStreamReader
from support.clients.administration import create_topic, delete_topic
from support.clients.delivery import SETTINGS, new_topic, produce
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.plain_records import wait_for_markers

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS, single_process=True) as running:
        yield running.bootstrap


class Transactions:
    """A topic with committed and aborted transactions; `committed` are the offsets that read_committed shows."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.topic = new_topic(bootstrap)
        self.committed: list[int] = []
        self.stored: list[int] = []
        self.end = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": self.topic})
        self._producer.init_transactions(TIMEOUT_S)

    def open(self, count: int) -> None:
        self._producer.begin_transaction()
        for _ in range(count):
            self._producer.produce(self.topic, f"v{self.end}".encode())
            self.stored.append(self.end)
            self.end += 1
        assert self._producer.flush(TIMEOUT_S) == 0

    def commit(self, count: int) -> None:
        self.open(count)
        self.committed += self.stored[-count:]
        self.close(commits=True)

    def abort(self, count: int) -> None:
        self.open(count)
        self.close(commits=False)

    def close(self, *, commits: bool) -> None:
        if commits:
            self._producer.commit_transaction(TIMEOUT_S)
        else:
            self._producer.abort_transaction(TIMEOUT_S)
        self.end += 1  # the control record
        wait_for_markers(self._bootstrap, self.topic, 1)


def offsets_in(reader: RangeReader, topic: str, first: int, end: int) -> list[int | None]:
    return [message.offset() for found in reader.read(OffsetRange(topic, 0, first, end)) for message in found]


def test_every_range_of_a_log_with_gaps_has_exactly_its_records(bootstrap: str) -> None:
    log = Transactions(bootstrap)
    log.commit(3)
    log.abort(4)
    log.commit(2)
    log.abort(1)
    for isolation, wanted in (("read_committed", log.committed), ("read_uncommitted", log.stored)):
        properties = {"bootstrap.servers": bootstrap, "isolation.level": isolation}
        with RangeReader(properties, timeout_s=TIMEOUT_S) as reader:
            for first in range(0, log.end + 1, 2):
                for end in range(first, log.end + 1, 3):
                    found = offsets_in(reader, log.topic, first, end)
                    assert found == [offset for offset in wanted if first <= offset < end], (isolation, first, end)
            assert offsets_in(reader, log.topic, 0, log.end) == wanted


def test_a_range_behind_an_open_transaction_is_waited_for(bootstrap: str) -> None:
    log = Transactions(bootstrap)
    log.commit(2)
    log.open(2)
    with RangeReader({"bootstrap.servers": bootstrap}, timeout_s=3.0) as hasty:
        assert end_offsets(hasty.consumer, [Partition(log.topic, 0)]) == {Partition(log.topic, 0): 3}
        with pytest.raises(KafkaUnavailable, match=r"stopped at offset 2: nothing came for 3 s"):
            offsets_in(hasty, log.topic, 0, 5)
    with (
        RangeReader({"bootstrap.servers": bootstrap}, timeout_s=TIMEOUT_S) as patient,
        ThreadPoolExecutor(1) as pool,
    ):
        reading = pool.submit(offsets_in, patient, log.topic, 0, 5)
        log.close(commits=True)
        assert reading.result(TIMEOUT_S) == [0, 1, 3, 4]


def test_offsets_that_are_not_there_are_lost_or_passed_over(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, [f"v{number}" for number in range(10)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(TIMEOUT_S)
    cases = {
        (0, 6): ([4, 5], "the log begins at offset 4"),
        (0, 3): ([], "the log begins at offset 4"),
        (8, 20): ([8, 9], "the log ends at offset 10"),
        (30, 40): ([], "the log ends at offset 10"),
    }
    properties = {"bootstrap.servers": bootstrap}
    for (first, end), (wanted, text) in cases.items():
        with pytest.raises(OffsetsLost, match=f"{text}.*failOnDataLoss"):
            list(read_range(OffsetRange(topic, 0, first, end), properties, timeout_s=TIMEOUT_S))
        with RangeReader(properties, timeout_s=TIMEOUT_S, must_be_whole=False) as reader:
            assert offsets_in(reader, topic, first, end) == wanted


def test_offsets_of_a_time(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    for time_ms in (1_000, 2_000, 3_000):
        produce(bootstrap, topic, ["v"], timestamp_ms=time_ms)
    place = Partition(topic, 0)
    with RangeReader({"bootstrap.servers": bootstrap}) as reader:
        found = [offsets_at(reader.consumer, [place], time_ms)[place] for time_ms in (0, 1_000, 1_001, 3_000, 3_001)]
    assert found == [0, 0, 1, 2, 3]


def test_a_missing_server_is_an_error_that_names_the_request() -> None:
    with (
        RangeReader({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, timeout_s=0.3) as reader,
        pytest.raises(KafkaUnavailable, match="reading orders:0:0-4 stopped at offset 0"),
    ):
        offsets_in(reader, "orders", 0, 5)


def source(bootstrap: str, topics: str, **options: str) -> LogDataSource:
    return LogDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": bootstrap, "subscribe": topics, **options}))


def batches_of(reader: DataSourceReader | DataSourceStreamReader, partition: InputPartition) -> Iterator[Any]:
    yield from reader.read(partition)


def batch_rows(found: LogDataSource) -> list[dict[str, Any]]:
    reader = found.reader(found.schema())
    return [
        row for partition in reader.partitions() for batch in batches_of(reader, partition) for row in batch.to_pylist()
    ]


def test_a_batch_has_the_records_by_value(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"a", b"k", 1, timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    producer.produce(topic, None, "ü", 0, timestamp=1_700_000_000_456)
    assert producer.flush(TIMEOUT_S) == 0
    rows = batch_rows(source(bootstrap, topic, includeHeaders="true"))
    assert [(row["partition"], row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (0, 0, "ü".encode(), None, None),
        (1, 0, b"k", b"a", [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]),
    ]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [1_700_000_000_456, 1_700_000_000_123]
    assert {(row["topic"], row["timestampType"]) for row in rows} == {(topic, 0)}
    assert "headers" not in batch_rows(source(bootstrap, topic))[0]


def test_a_topic_with_log_append_time_says_so(bootstrap: str) -> None:
    topic = new_topic(bootstrap, message_timestamp_type="LogAppendTime")
    produce(bootstrap, topic, ["v"], timestamp_ms=5_000)
    (row,) = batch_rows(source(bootstrap, topic))
    assert row["timestampType"] == 1
    assert row["timestamp"].year > 2000


def test_starting_and_ending_offsets_and_min_partitions(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    for partition in range(2):
        produce(bootstrap, topic, [f"{partition}-{number}" for number in range(6)], partition)

    def values(**options: str) -> list[str]:
        return [row["value"].decode() for row in batch_rows(source(bootstrap, topic, **options))]

    everything = [f"{partition}-{number}" for partition in range(2) for number in range(6)]
    assert values() == everything
    assert values(startingOffsets="latest") == []
    first, last = f'{{"{topic}": {{"0": 4, "1": -2}}}}', f'{{"{topic}": {{"0": -1, "1": 2}}}}'
    assert values(startingOffsets=first, endingOffsets=last) == ["0-4", "0-5", "1-0", "1-1"]
    reader = source(bootstrap, topic, minPartitions="5").reader(source(bootstrap, topic).schema())
    assert len(reader.partitions()) >= 5
    assert values(minPartitions="5") == everything
    with pytest.raises(InvalidOption, match=f"startingOffsets must name every partition; it leaves out {topic}:1"):
        values(startingOffsets=f'{{"{topic}": {{"0": 4}}}}')
    with pytest.raises(InvalidOption, match=f"endingOffsets names {topic}:7"):
        values(endingOffsets=f'{{"{topic}": {{"0": -1, "1": -1, "7": 0}}}}')
    with pytest.raises(UnknownTopic, match=r"there is no nothing-here"):
        batch_rows(source(bootstrap, f"{topic},nothing-here"))


def test_times_beyond_those_of_spark_become_the_latest(bootstrap: str) -> None:
    topic = new_topic(bootstrap, message_timestamp_after_max_ms=str(2**63 - 1))
    for time_ms in (1_700_000_000_123, 1_700_000_000_000_000_000):  # the second one is in nanoseconds
        produce(bootstrap, topic, ["a"], timestamp_ms=time_ms)
    found = source(bootstrap, topic)
    reader = found.reader(found.schema())
    (partition,) = reader.partitions()
    (batch,) = batches_of(reader, partition)
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert stamps == [1_700_000_000_123_000, (2**63 - 1) // 1000 * 1000]


def test_assigned_partitions_only(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 3)
    for partition in range(3):
        produce(bootstrap, topic, [str(partition)], partition)
    named = {"kafka.bootstrap.servers": bootstrap, "assign": f'{{"{topic}": [2, 0]}}'}
    assert sorted(row["value"] for row in batch_rows(LogDataSource(CaseInsensitiveDict(named)))) == [b"0", b"2"]
    named["assign"] = f'{{"{topic}": [9]}}'
    with pytest.raises(UnknownTopic, match=f"there is no {topic}:9"):
        batch_rows(LogDataSource(CaseInsensitiveDict(named)))


def stream(bootstrap: str, topics: str, **options: str) -> LogStreamReader:
    found = source(bootstrap, topics, **options)
    reader = found.streamReader(found.schema())
    assert isinstance(reader, LogStreamReader)
    return reader


def stream_values(reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    rows = [
        row
        for partition in reader.partitions(start, end)
        for batch in batches_of(reader, partition)
        for row in batch.to_pylist()
    ]
    return sorted(row["value"].decode() for row in rows)


def test_a_stream_reads_batches_of_the_limit_and_replays_them_exactly(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    reader = stream(bootstrap, topic, maxOffsetsPerTrigger="4")
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    start = initial = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(4)) == start
    for partition in range(2):
        produce(bootstrap, topic, [f"{partition}-{number}" for number in range(3)], partition)
    batches: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(4))) != start:
        batches.append((start, end, stream_values(reader, start, end)))
        start = end
    assert [len(found) for _, _, found in batches] == [4, 2]
    assert sorted(batches[0][2] + batches[1][2]) == [
        f"{partition}-{number}" for partition in range(2) for number in range(3)
    ]
    reader.stop()
    produce(bootstrap, topic, ["later"])
    again = stream(bootstrap, topic)
    assert again.initialOffset() != initial
    assert stream_values(again, again.initialOffset(), batches[0][1]) == batches[0][2], (
        "the first batch, after a restart"
    )
    assert stream_values(again, batches[1][0], batches[1][1]) == batches[1][2]
    assert stream_values(again, start, again.latestOffset(start, ReadAllAvailable())) == ["later"]
    again.stop()


def test_available_now_ends_at_what_was_there(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, ["a", "b", "c"])
    reader = stream(bootstrap, topic, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, topic, ["later"])
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(2))
    end = reader.latestOffset(middle, ReadMaxRows(2))
    assert stream_values(reader, start, middle) + stream_values(reader, middle, end) == ["a", "b", "c"]
    assert reader.latestOffset(end, ReadMaxRows(2)) == end
    reader.stop()


def test_topics_and_partitions_that_come_later_are_read_from_their_first_record(bootstrap: str) -> None:
    topic = f"{new_topic(bootstrap)}-later"
    reader = stream(bootstrap, topic)
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, ReadAllAvailable()) == {}
    create_topic(bootstrap, topic, 1)
    produce(bootstrap, topic, ["a"])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert stream_values(reader, start, end) == ["a"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (grown,) = admin.create_partitions([NewPartitions(topic, 2)]).values()
    grown.result(TIMEOUT_S)
    produce(bootstrap, topic, ["b"], 1)
    after = reader.latestOffset(end, ReadAllAvailable())
    assert stream_values(reader, end, after) == ["b"]
    assert reader.reportLatestOffset() == {
        topic: {"0": {"from": 1, "until": 1}, "1": {"from": 1, "until": 1}},
    }
    reader.stop()


def test_a_topic_that_was_made_anew_fails_the_stream_unless_loss_is_allowed(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, ["a", "b"])
    reader = stream(bootstrap, topic, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, 1)
    produce(bootstrap, topic, ["c"])
    text = f"{topic}:0 was read up to offset 2 and ends at offset 1"
    with pytest.raises(OffsetsLost, match=re.escape(text)):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()


@pytest.mark.parametrize(("reset", "first"), [("latest", 3), ("earliest", 0)])
def test_a_stream_continues_in_a_log_that_became_shorter(
    bootstrap: str, reset: str, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, ["old"] * 10)
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false", "offsetReset": reset}
    reader = stream(bootstrap, topic, **options)
    position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, 1)
    values = [str(number) for number in range(3)]
    produce(bootstrap, topic, values)
    reader.prepareForTriggerAvailableNow()
    found: list[str] = []
    while (end := reader.latestOffset(position, ReadMaxRows(2))) != position:
        found += stream_values(reader, position, end)
        position = end
    assert found == values[first:]
    assert f"{topic}:0 was read up to offset 10 and ends at offset 3" in caplog.text
    assert f"continues at offset {first}" in caplog.text
    reader.stop()
    again = stream(bootstrap, topic, **options)
    produce(bootstrap, topic, ["next"])
    assert stream_values(again, position, again.latestOffset(position, ReadAllAvailable())) == ["next"]
    again.stop()
