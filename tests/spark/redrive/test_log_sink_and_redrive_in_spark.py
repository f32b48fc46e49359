"""The log source, the sink and redrive in a real Spark session: one session and one cluster for all of them."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kshare.redrive.spark import CANDIDATES, from_arrow, redrive_with_spark, to_arrow
from kshare_kafka_client.redrive.originals import IS_GONE
from kshare_kafka_client.redrive.request import BadRequest, RedriveRequest, Selection
from support.clients.administration import create_topic
from support.clients.delivery import SETTINGS, new_topic, produce
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.plain_records import Letter, committed_records, write_letters
from support.pipeline.spark import shared_spark


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS, single_process=True) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_spark()


def read_log(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.read.format("kshare-log").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).option("includeHeaders", "true").option("minPartitions", 3).load()


def test_what_is_written_is_read_by_value(spark: SparkSession, bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    rows = spark.range(200).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id = 7, NULL, CONCAT('v', id)) AS value",
        "ARRAY(NAMED_STRUCT('key', 'id', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
        "CAST(id % 2 AS INT) AS partition",
        "'left out' AS other",
    )
    rows.write.format("kshare").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).mode(
        "append"
    ).save()
    found = read_log(spark, bootstrap, topic).collect()
    assert sorted((row.partition, int(row.key), row.value, row.headers[0].value) for row in found) == [
        (number % 2, number, None if number == 7 else f"v{number}".encode(), str(number).encode())
        for number in sorted(range(200), key=lambda number: (number % 2, number))
    ]
    assert Counter(row.offset for row in found) == {offset: 2 for offset in range(100)}
    assert {(row.topic, row.timestampType, len(row.headers)) for row in found} == {(topic, 0, 1)}
    with pytest.raises(PySparkException, match="column value must be string or binary, found bigint"):
        spark.range(1).selectExpr("id AS value").write.format("kshare").option(
            "kafka.bootstrap.servers", bootstrap
        ).option("topic", topic).mode("append").save()


def test_a_batch_that_was_cut_off_is_run_again_with_the_same_records(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    source, target = new_topic(bootstrap), new_topic(bootstrap)
    checkpoint = tmp_path / "checkpoint"

    def frame() -> DataStreamWriter:
        """As on every start of the same query."""
        stream = spark.readStream.format("kshare-log").option("kafka.bootstrap.servers", bootstrap)
        values = stream.option("subscribe", source).option("maxOffsetsPerTrigger", 6).load().select("value")
        sink = values.writeStream.format("kshare").option("kafka.bootstrap.servers", bootstrap)
        return sink.option("topic", target).option("checkpointLocation", str(checkpoint))

    def written() -> list[str]:
        return [(record.value or b"").decode() for record in committed_records(bootstrap, target)]

    produce(bootstrap, source, ["before"])
    query = frame().start()
    try:
        query.processAllAvailable()
        produce(bootstrap, source, [f"a{number}" for number in range(4)])
        query.processAllAvailable()
    finally:
        query.stop()
    assert written() == ["a0", "a1", "a2", "a3"], "a stream begins at the end of the log"
    shutil.rmtree(checkpoint / "commits")  # Spark crashed after the write and before it noted the batch
    produce(bootstrap, source, [f"b{number}" for number in range(8)])
    assert frame().trigger(availableNow=True).start().awaitTermination(200)
    assert written()[4:8] == ["a0", "a1", "a2", "a3"], "the same batch again, not what the log's end is now"
    assert written()[8:] == [f"b{number}" for number in range(8)]


def test_redrive_with_an_sql_expression_moves_once(spark: SparkSession, bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap, 2), f"dlq.{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, letters, 3)
    produce(bootstrap, topic, ['{"cents": 5}', '{"cents": 900}'], 1)
    for partition in range(3):
        found = [Letter(topic, n, value=b'{"cents": %d}' % (n * 100), key=b"k%d" % partition) for n in range(10)]
        write_letters(bootstrap, letters, [*found, *(Letter(topic, n, 1) for n in range(3))], partition)
    request = RedriveRequest(
        {"bootstrap.servers": bootstrap},
        dead_letter_topics=(letters,),
        where="get_json_object(CAST(value AS STRING), '$.cents') >= 700 OR problem <> ''",
        timeout_s=30.0,
    )
    shown = redrive_with_spark(replace(request, dry_run=True), spark)
    assert (shown.moved, shown.problems) == ({topic: {"rejected": 12}}, {IS_GONE: 3})
    assert len(committed_records(bootstrap, topic, 2)) == 2
    first = redrive_with_spark(request, spark)
    assert (first.moved, first.already_moved, first.problems) == (shown.moved, 0, shown.problems)
    moved = committed_records(bootstrap, topic, 2)
    wanted: dict[tuple[Any, ...], int] = {
        (0, b"k%d" % partition, b'{"cents": %d}' % cents): 1 for partition in range(3) for cents in (700, 800, 900)
    }
    originals: dict[tuple[Any, ...], int] = {(1, None, b'{"cents": 5}'): 1, (1, None, b'{"cents": 900}'): 4}
    assert Counter(record[:1] + record[2:4] for record in moved) == {**wanted, **originals}
    everything = redrive_with_spark(
        replace(request, where=None, selection=Selection(keys=(b"k1",)), rate=1000.0), spark
    )
    assert (everything.moved_count, everything.already_moved) == (7, 3)
    with pytest.raises(BadRequest, match=r"the SQL expression 'cents > 5' is wrong: .*cents"):
        redrive_with_spark(replace(request, where="cents > 5"), spark)
    with pytest.raises(BadRequest, match="the SQL expression 'value ='"):
        redrive_with_spark(replace(request, where="value ="), spark)
    names = [field.split()[0] for field in CANDIDATES.replace("<key: string, value: binary>", "").split(", ")]
    assert to_arrow([]).schema.names == names
    assert from_arrow(to_arrow([])) == []
