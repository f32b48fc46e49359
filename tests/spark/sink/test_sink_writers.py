"""The sink's writers: which frames they take, and what they store on a real cluster, called as Spark calls them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kshare_kafka_client.properties import InvalidOption
from kshare_spark.sink import DeliveryFailed, KshareBatchWriter, KshareStreamWriter, StoredRecords
from kshare_spark.sink.columns import InvalidColumns
from support.clients.delivery import SETTINGS, new_topic
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.plain_records import committed_records

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
ARROW_HEADERS: Any = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS, single_process=True) as running:
        yield running.bootstrap


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def options(bootstrap: str = "a:1", **given: str) -> CaseInsensitiveDict:
    return CaseInsensitiveDict({"kafka.bootstrap.servers": bootstrap, **given})


VALUE = schema(value=StringType())


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (schema(key=StringType(), val=StringType()), "column value is missing; there are key, val"),
        (schema(value=DoubleType()), "column value must be string or binary, found double"),
        (schema(value=StringType(), key=LongType()), "column key must be string or binary, found bigint"),
        (schema(value=StringType(), partition=StringType()), "column partition must be int, found string"),
        (schema(value=StringType(), topic=BinaryType()), "column topic must be string, found binary"),
        (
            schema(value=StringType(), headers=MapType(StringType(), StringType())),
            "column headers must be array<struct<key:string,value:binary>>, found map<string,string>",
        ),
        (
            schema(value=StringType(), headers=ArrayType(StructType([StructField("key", StringType())]))),
            "column headers must be array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_by_the_columns_name(columns: StructType, text: str) -> None:
    for writer in (KshareBatchWriter, KshareStreamWriter):
        with pytest.raises(InvalidColumns, match=re.escape(text)):
            writer(columns, options(topic="orders"), False)


def test_options_that_are_wrong_are_refused() -> None:
    with pytest.raises(InvalidColumns, match="neither an option topic nor a column topic"):
        KshareBatchWriter(VALUE, options(), False)
    with pytest.raises(InvalidOption, match="unknown option 'topik'"):
        KshareBatchWriter(VALUE, options(topik="orders"), False)
    with pytest.raises(InvalidOption, match="option topic is empty"):
        KshareBatchWriter(VALUE, options(topic=""), False)
    with pytest.raises(InvalidOption, match=r"option kafka\.bootstrap\.servers is missing"):
        KshareBatchWriter(VALUE, CaseInsensitiveDict({"topic": "orders"}), False)
    with pytest.raises(InvalidOption, match='mode "overwrite" is not possible'):
        KshareBatchWriter(VALUE, options(topic="orders"), True)
    with pytest.raises(InvalidOption, match=r'No such configuration property: "no\.such"'):
        KshareBatchWriter(VALUE, options(topic="orders", **{"kafka.no.such": "1"}), False)
    KshareStreamWriter(VALUE, options(topic="orders", checkpointLocation="/somewhere"), True)


def stored(writer: KshareBatchWriter | KshareStreamWriter, *batches: dict[str, Any]) -> int:
    """Runs a task with the writer as it comes out of a pickle, as at a worker."""
    arrived = pickle.loads(pickle.dumps(writer))
    kinds = {"partition": pa.int32(), "headers": ARROW_HEADERS}
    arrow = [
        pa.RecordBatch.from_pydict({name: pa.array(cells, kinds.get(name)) for name, cells in batch.items()})
        for batch in batches
    ]
    message = arrived.write(iter(arrow))
    assert isinstance(message, StoredRecords)
    return message.records


def test_rows_become_records_by_value(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 3)
    columns = schema(
        key=BinaryType(),
        value=StringType(),
        headers=HEADERS,
        partition=IntegerType(),
        topic=StringType(),
        other=LongType(),
    )
    writer = KshareBatchWriter(columns, options(bootstrap), False)
    count = stored(
        writer,
        {
            "key": [b"\xff", None],
            "value": ["ä", None],
            "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
            "partition": [2, 1],
            "topic": [topic, topic],
            "other": [1, 2],
        },
        {"key": [b"k"], "value": [""], "headers": [[]], "partition": [2], "topic": [topic], "other": [3]},
    )
    assert count == 3
    found = committed_records(bootstrap, topic, 3)
    assert [(record.partition, record.key, record.value, record.headers) for record in found] == [
        (1, None, None, []),
        (2, b"\xff", "ä".encode(), [("h", b"1"), ("h", None)]),
        (2, b"k", b"", []),
    ]


def test_the_option_topic_is_stronger_than_the_column_and_keys_decide_the_partition_as_in_java(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 8)
    columns = schema(key=StringType(), value=StringType(), topic=StringType())
    writer = KshareStreamWriter(columns, options(bootstrap, topic=topic), False)
    keys = ["a", "order-1", "order-2", "kshare"]
    assert stored(writer, {"key": keys, "value": keys, "topic": [None, "x", "y", "z"]}) == 4
    found = {record.key: record.partition for record in committed_records(bootstrap, topic, 8)}
    assert found == {key.encode(): partition_in_java(key.encode(), 8) for key in keys}


def partition_in_java(key: bytes, count: int) -> int:
    """Murmur2 with Kafka's seed, positive, modulo the partitions."""
    mask = 0xFFFFFFFF
    mixed = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for begin in range(0, whole, 4):
        word = int.from_bytes(key[begin : begin + 4], "little") * 0x5BD1E995 & mask
        word = (word ^ word >> 24) * 0x5BD1E995 & mask
        mixed = mixed * 0x5BD1E995 & mask ^ word
    if key[whole:]:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & mask
    mixed = (mixed ^ mixed >> 13) * 0x5BD1E995 & mask
    return ((mixed ^ mixed >> 15) & 0x7FFFFFFF) % count


def test_a_record_that_is_not_stored_fails_its_task_and_says_where(bootstrap: str) -> None:
    topic = new_topic(bootstrap, max_message_bytes="1000")
    columns = schema(value=StringType(), partition=IntegerType(), topic=StringType())
    # By default librdkafka waits for 30 s for a topic that does not exist.
    settings = {"kafka.compression.type": "none", "kafka.topic.metadata.propagation.max.ms": "500"}
    writer = KshareBatchWriter(columns, options(bootstrap, **settings), False)
    with pytest.raises(DeliveryFailed, match=f"partition 7 of topic {topic}: UNKNOWN_PARTITION"):
        stored(writer, {"value": ["a", "b"], "partition": [0, 7], "topic": [topic, topic]})
    with pytest.raises(DeliveryFailed, match=f"partition 0 of topic {topic}: MSG_SIZE_TOO_LARGE"):
        stored(writer, {"value": ["x" * 2_000], "partition": [0], "topic": [topic]})
    with pytest.raises(DeliveryFailed, match=r"topic no-such-topic: UNKNOWN_TOPIC"):
        stored(writer, {"value": ["a"], "partition": [0], "topic": ["no-such-topic"]})
    with pytest.raises(DeliveryFailed, match="column topic is null in a row"):
        stored(writer, {"value": ["a"], "partition": [0], "topic": [None]})


def test_a_header_without_a_key_is_refused(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    writer = KshareBatchWriter(schema(value=StringType(), headers=HEADERS), options(bootstrap, topic=topic), False)
    with pytest.raises(DeliveryFailed, match="a header is null or has a null key"):
        stored(writer, {"value": ["a"], "headers": [[{"key": None, "value": b"1"}]]})
