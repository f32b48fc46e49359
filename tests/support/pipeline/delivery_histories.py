"""Delivery histories by hand: events in seconds after a moment, as records of the history topic.

`orders_history` is the history whose figures the tests of marts and of the report know; comments there say what
happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession

from kshare_core.delivery_history import (
    HISTORY_TOPIC,
    DeliveryEvent,
    EventType,
    HistoryRecord,
    encode_history_record,
    share_partition_key,
)
from kshare_pipeline.marts.refresh import MartRefresh
from kshare_pipeline.tables.formats import events_table, quarantine_table
from kshare_pipeline.tables.history_stream import HistoryIngest, HistoryStream
from kshare_pipeline.tables.layout import Layout, TouchedDays

BEGIN = datetime(2026, 11, 20, 10, tzinfo=UTC)
BEGIN_MS = int(BEGIN.timestamp() * 1000)

KAFKA_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_ARROW = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def at(seconds: float) -> int:
    """Milliseconds since the epoch of a moment after BEGIN."""
    return BEGIN_MS + round(seconds * 1000)


def event(
    kind: EventType,
    seconds: float,
    first: int | None = None,
    last: int | None = None,
    *,
    member: str | None = None,
    count: int | None = None,
    appended: float | None = None,
    start_offset: int | None = None,
    reason: str | None = None,
    dead_letter_topic: str | None = None,
    client: str | None = None,
) -> DeliveryEvent:
    return DeliveryEvent(
        kind,
        at(seconds),
        first,
        last,
        delivery_count=count,
        member_id=member,
        append_time_ms=None if appended is None else at(appended),
        start_offset=start_offset,
        reason=reason,
        dead_letter_topic=dead_letter_topic,
        runs=() if kind is EventType.LOADED else None,
        client_id=client,
    )


@dataclass
class Leader:
    """What one incarnation of a leader tells of a share-partition; sequence numbers go on by themselves."""

    group: str
    topic: str = "orders"
    partition: int = 0
    leader: int = 1
    incarnation: int = 7
    leader_epoch: int = 3
    next_sequence: int = field(default=0)

    def record(self, *events: DeliveryEvent) -> bytes:
        found = HistoryRecord(
            leader=self.leader,
            incarnation=self.incarnation,
            sequence=self.next_sequence,
            group=self.group,
            topic=self.topic,
            topic_id=f"id-of-{self.topic}",
            partition=self.partition,
            state_epoch=1,
            leader_epoch=self.leader_epoch,
            events=events,
        )
        self.next_sequence += len(events)
        return encode_history_record(found)

    def lose(self, count: int) -> None:
        """So many events never reach the topic."""
        self.next_sequence += count


def orders_history() -> list[bytes]:
    """Two groups, and an order that is acquired before midnight and accepted after it."""
    e = EventType
    workers = Leader("workers")
    records = [
        workers.record(
            event(e.LOADED, 0, start_offset=0),
            event(e.ACQUIRED, 1, 0, 9, member="m1", count=1, appended=-1, client="worker-1"),
            event(e.ACQUIRED, 2, 10, 19, member="m2", count=1, appended=0),
            event(e.ACCEPTED, 5, 0, 7, member="m1", count=1),
            event(e.START_OFFSET_MOVED, 5, start_offset=8, reason="deliveries_ended"),
            event(e.RELEASED, 6, 8, 9, member="m1", count=1),
        ),
        workers.record(
            event(e.ACCEPTED, 61, 10, 19, member="m2", count=1),
            event(e.ACQUIRED, 62, 8, 9, member="m2", count=2, appended=-1),
            event(e.ACCEPTED, 65, 8, 8, member="m2", count=2),
            event(e.REJECTED, 66, 9, 9, member="m2", count=2),
            event(e.DEAD_LETTERED, 66.5, 9, 9, count=2, reason="rejected", dead_letter_topic="dlq"),
            event(e.ARCHIVED, 67, 9, 9, count=2, reason="rejected"),
            event(e.START_OFFSET_MOVED, 67, start_offset=20, reason="deliveries_ended"),
            event(e.ACQUIRED, 70, 20, 29, member="m1", count=1, appended=69),
        ),
        workers.record(
            event(e.EXPIRED, 130, 20, 29, member="m1", count=1),
            event(e.ACQUIRED, 131, 20, 29, member="m1", count=2, appended=69),
            event(e.RELEASED, 132, 20, 24, member="m1", count=2, reason="not_delivered"),
        ),
    ]
    workers.lose(2)  # 20 to 24 were acquired again, and something else
    records.append(
        workers.record(
            event(e.ACCEPTED, 140, 20, 29, member="m1", count=2),
            event(e.DEAD_LETTERED, 150, 9, 9, count=2, reason="rejected", dead_letter_topic="dlq"),  # told again
        )
    )
    numbered = Leader("007", partition=3)
    records.append(
        numbered.record(
            event(e.LOADED, 10, start_offset=0),
            event(e.ACQUIRED, 11, 0, 2, member="a", count=1, appended=10),
            event(e.ACQUIRED, 11, 3, 3, member="b", count=1, appended=10, client="<b>"),
            event(e.ACCEPTED, 12, 0, 2, member="a", count=1),
            event(e.ACCEPTED, 12, 3, 3, member="b", count=1),
        )
    )
    night = Leader("night <b>", topic="late")
    midnight = 14 * 3600
    records += [
        night.record(event(e.ACQUIRED, midnight - 1, 5, 9, member="owl", count=1, appended=midnight - 2)),
        night.record(event(e.ACCEPTED, midnight + 1, 5, 9, member="owl", count=1)),
    ]
    return records


def write_records(folder: Path, values: Sequence[bytes | None], first_offset: int) -> None:
    """A Parquet file of records of the history topic in the columns of Spark's Kafka source, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "key": share_partition_key("group", "topic", 0),
            "value": value,
            "topic": HISTORY_TOPIC,
            "partition": 0,
            "offset": first_offset + number,
            "timestamp": BEGIN,
        }
        for number, value in enumerate(values)
    ]
    draft = folder / f".{first_offset:06d}"
    parquet.write_table(pa.Table.from_pylist(rows, schema=_ARROW), draft)
    draft.replace(folder / f"{first_offset:06d}.parquet")


class Pipeline:
    """As a process has it after its start: what the last one left unfinished is finished."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.topic = folder / "topic"
        self.topic.mkdir(parents=True, exist_ok=True)
        self.layout = Layout(folder / "data")
        self.layout.prepare()
        touched = TouchedDays(self.layout.touched)
        self.events = events_table(spark, self.layout)
        self.quarantine = quarantine_table(spark, self.layout)
        self.ingest = HistoryIngest(self.events, self.quarantine, touched)
        self.stream = HistoryStream(self._records, self.ingest, self.layout)
        self.refresh = MartRefresh(spark, self.layout, self.events, touched)

    def _records(self) -> DataFrame:
        """A batch for each file."""
        reader = self.spark.readStream.schema(KAFKA_COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.topic))
