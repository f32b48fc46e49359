"""The writers that Spark calls; `write` runs in Python workers, one idempotent producer for each task.

Idempotence prevents that a producer's retries store a record twice or out of order. A task waits until all its records
are stored; the first failure fails the task and drops the queued records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kshare_kafka_client.properties import InvalidOption, kafka_properties, open_producer, producer_properties
from kshare_spark.sink.columns import NAMES, check_columns, topic_option

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S = 0.5


class DeliveryFailed(RuntimeError):
    """A record was not stored; the text has its destination and the reason."""


@dataclass
class StoredRecords(WriterCommitMessage):
    """The count of records that a task stored."""

    records: int


class _TopicWriter:
    """The base of both writers: the driver checks options and columns, workers write rows."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._topic = topic_option(options)
        check_columns(schema, self._topic)
        self._properties = producer_properties(kafka_properties(options))
        open_producer(self._properties)  # rejects a property that librdkafka does not know before anything runs

    def store(self, batches: Iterator[pa.RecordBatch]) -> StoredRecords:
        """Stores all rows; DeliveryFailed for the first failure."""
        producer = _TaskProducer(self._properties)
        try:
            count = 0
            for batch in batches:
                for row in _rows(batch, self._topic):
                    producer.send(row)
                count += batch.num_rows
            producer.wait_until_stored()
        except BaseException:
            producer.give_up()
            raise
        return StoredRecords(count)


class KshareBatchWriter(DataSourceArrowWriter):
    """df.write.format("kshare"), mode append. InvalidOption or InvalidColumns when the query is planned."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('mode "overwrite" is not possible: a topic only grows; use mode "append"')
        self._writer = _TopicWriter(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.store(iterator)


class KshareStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream.format("kshare"). A batch that is run again after a crash is stored again (at least once).

    `overwrite` is output mode complete: the whole result is appended for each batch, as in Spark's Kafka sink.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._writer = _TopicWriter(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.store(iterator)


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[dict[str, Any]]:
    """Arguments of `Producer.produce` for each row."""
    names = [name for name in batch.schema.names if name in NAMES]
    columns = [batch.column(name).to_pylist() for name in names]
    for cells in zip(*columns, strict=True):
        row = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
        if topic is not None:
            row["topic"] = topic
        elif "topic" not in row:
            raise DeliveryFailed("column topic is null in a row, and there is no option topic")
        if "headers" in row:
            row["headers"] = [_header(header) for header in row["headers"]]
        yield row


def _header(header: dict[str, Any] | None) -> tuple[str, Any]:
    if header is None or header["key"] is None:
        raise DeliveryFailed("a header is null or has a null key; a header must have a key")
    return header["key"], header["value"]


class _TaskProducer:
    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._failures: list[DeliveryFailed] = []
        only_failures = {"delivery.report.only.error": True}
        self._producer: Producer = open_producer({**properties, **only_failures})

    def send(self, row: Mapping[str, Any]) -> None:
        while True:
            self._fail_if_needed()
            try:
                self._producer.produce(**row, on_delivery=self._delivered)
                break
            except BufferError:  # the queue is full
                self._producer.poll(WAIT_S)
            except KafkaException as error:
                raise _failure(row["topic"], row.get("partition"), error.args[0]) from None
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and not self._failures:
            self._failures.append(_failure(message.topic(), message.partition(), error))

    def _fail_if_needed(self) -> None:
        if self._failures:
            raise self._failures[0]

    def wait_until_stored(self) -> None:
        """Waits for the delivery of all rows; librdkafka's delivery.timeout.ms bounds it."""
        while self._producer.flush(WAIT_S) > 0:
            self._fail_if_needed()
        self._fail_if_needed()

    def give_up(self) -> None:
        self._producer.purge()
        self._producer.flush(WAIT_S)


def _failure(topic: str | None, partition: int | None, error: KafkaError) -> DeliveryFailed:
    place = f"topic {topic}" if partition is None or partition < 0 else f"partition {partition} of topic {topic}"
    return DeliveryFailed(f"a record was not stored in {place}: {error.name().lstrip('_')}: {error.str()}")
