"""The columns of the share source: those of Spark's Kafka source and two of share groups.

| column | type | |
|---|---|---|
| key, value | binary | |
| topic | string | |
| partition | int | |
| offset | bigint | |
| timestamp | timestamp | of the record, in ms |
| timestampType | int | 0: of its creation, 1: of its append |
| headers | array<struct<key string, value binary>> | with includeHeaders=true |
| delivery_count | int | 1 for the first delivery |
| lock_deadline | timestamp | the earliest time at which the lock expires if it is not renewed |

(topic, partition, offset) identifies a record: the key for sinks that must store it once.
"""

from __future__ import annotations

from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from kshare_spark.record_columns import COLUMNS, COLUMNS_WITH_HEADERS


def columns(*, include_headers: bool) -> StructType:
    """The schema of a read."""
    of_record = COLUMNS_WITH_HEADERS if include_headers else COLUMNS
    added = [StructField("delivery_count", IntegerType()), StructField("lock_deadline", TimestampType())]
    return StructType([*of_record.fields, *added])
