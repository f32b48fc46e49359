"""Messages of confluent-kafka as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kshare_spark.record_columns import timestamps

_ARROW_FIELDS: list[Any] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
_ARROW_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
ARROW_SCHEMA = pa.schema(_ARROW_FIELDS)
ARROW_SCHEMA_WITH_HEADERS = pa.schema([*_ARROW_FIELDS, pa.field("headers", _ARROW_HEADERS)])

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1
"""Kafka's numbers in the column `timestampType`."""


def record_batch(topic: str, partition: int, messages: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
    """Messages of one partition. A record without time has none (null) and timestampType -1."""
    count = len(messages)
    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([topic] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        timestamps([None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms for kind, time_ms in stamps]),
        pa.array([_timestamp_type(kind) for kind, _ in stamps], pa.int32()),
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
    columns.append(pa.array([_headers(message) for message in messages], _ARROW_HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA_WITH_HEADERS)


def _timestamp_type(kind: int) -> int:
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if kind == TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Null for a record without headers, as in Spark's Kafka source."""
    found = message.headers()
    if not found:
        return None
    pairs: Any = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
