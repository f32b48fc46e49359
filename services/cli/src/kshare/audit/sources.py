"""The history to audit, as a DataFrame with the columns of the `events` table.

It comes from the table of the history service (`from_tables`), from the topic (`from_topic`), or from a file with one
record value per line (`from_lines`). The latter two are parsed as the service does; a malformed record is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kshare.audit.direct import BadHistory
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_kafka_client.properties import InvalidOption, open_consumer, reader_properties
from kshare_kafka_client.topics import KafkaUnavailable, partitions_of
from kshare_pipeline.tables.layout import Layout, days_of
from kshare_pipeline.tables.parse import EVENTS_SCHEMA, parse_history
from kshare_spark.log_source import LogDataSource


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the history: whole UTC days, both included, and groups; None or empty means all."""

    since: date | None = None
    until: date | None = None
    groups: Sequence[str] = ()

    def of(self, events: DataFrame) -> DataFrame:
        if self.since is not None:
            events = events.where(F.col("date") >= F.lit(self.since))
        if self.until is not None:
            events = events.where(F.col("date") <= F.lit(self.until))
        if self.groups:
            events = events.where(F.col("group").isin(*self.groups))
        return events


def from_tables(spark: SparkSession, folder: Path) -> DataFrame:
    """The `events` table in the history service's data folder; BadHistory if there is none."""
    events = Layout(folder).events
    if not days_of(events):
        raise BadHistory(f"{folder} has no delivery events; it must be the data folder of the pipeline service")
    return spark.read.schema(EVENTS_SCHEMA).parquet(str(events))


def check_topic(bootstrap: str, properties: Mapping[str, str] | None = None) -> None:
    """BadHistory if the cluster does not respond or has no history topic. Needs no Spark, so it returns quickly."""
    try:
        consumer = open_consumer(reader_properties({"bootstrap.servers": bootstrap, **(properties or {})}))
        found = partitions_of(consumer, [HISTORY_TOPIC])
        consumer.close()
    except (InvalidOption, KafkaUnavailable) as problem:
        raise BadHistory(f"the history of {bootstrap} cannot be read: {problem}") from problem
    if not found:
        text = (
            f"{bootstrap} has no topic {HISTORY_TOPIC}: leaders write it where kshare.delivery.history.enable is true"
        )
        raise BadHistory(text)


def from_topic(spark: SparkSession, bootstrap: str, properties: Mapping[str, str] | None = None) -> DataFrame:
    """All current records of the history topic. `properties` are those of a Kafka client, such as security.protocol.

    BadHistory for a malformed record.
    """
    spark.dataSource.register(LogDataSource)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": HISTORY_TOPIC,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{name}": value for name, value in (properties or {}).items()},
    }
    records = spark.read.format(LogDataSource.name()).options(**options).load()
    return _parsed(records.persist(StorageLevel.DISK_ONLY), HISTORY_TOPIC)  # the topic grows; it is read once


def from_lines(spark: SparkSession, file: Path) -> DataFrame:
    """A file of UTF-8 text with one record value per line; BadHistory for a malformed line."""
    if not file.exists():
        raise BadHistory(f"there is no {file}")
    records = spark.read.text(str(file)).where(F.trim("value") != "")
    return _parsed(
        records.select(
            F.lit(None).cast("binary").alias("key"),
            F.col("value").cast("binary").alias("value"),
            F.lit(str(file)).alias("topic"),
            F.lit(0).alias("partition"),
            F.monotonically_increasing_id().alias("offset"),
            F.current_timestamp().alias("timestamp"),
        ),
        str(file),
    )


def _parsed(records: DataFrame, place: str) -> DataFrame:
    """The events of records; BadHistory names the first malformed record."""
    parsed = parse_history(records)
    broken = parsed.quarantine.orderBy("partition", "offset").limit(1).collect()
    if broken:
        row = broken[0]
        raise BadHistory(f"{place}, partition {row['partition']}, offset {row['offset']}: {row['problem']}")
    return parsed.events
