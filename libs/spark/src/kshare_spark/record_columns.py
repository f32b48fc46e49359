"""The columns of Spark's Kafka source as Spark types; both sources of kshare have them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
MICROSECONDS_PER_MS = 1000
TIMESTAMP_LIMIT_MS = (2**63 - 1) // MICROSECONDS_PER_MS
"""The latest time that Spark's timestamps can have, and, negative, the earliest."""
COLUMNS_WITH_HEADERS = StructType([*COLUMNS.fields, HEADERS])


def timestamps(times_ms: Sequence[int | None]) -> pa.Array:
    """The column `timestamp`, in microseconds. A time beyond TIMESTAMP_LIMIT_MS, as producers may write, becomes it."""
    times = pa.array(times_ms, pa.int64())
    within = pc.max_element_wise(times, -TIMESTAMP_LIMIT_MS, skip_nulls=False)
    within = pc.min_element_wise(within, TIMESTAMP_LIMIT_MS, skip_nulls=False)
    return within.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
