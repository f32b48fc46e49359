"""The delivery history's records as Spark columns: the schema of a record's JSON value.

`from_json(col("value").cast("string"), HISTORY_SCHEMA)`; see `kshare_core.delivery_history` for what the fields mean.
A run of a `loaded` event is an array of four: first offset, last offset, state, delivery count, as text.
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

EVENT_SCHEMA = StructType(
    [
        StructField("event", StringType()),
        StructField("time_ms", LongType()),
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("delivery_count", IntegerType()),
        StructField("member_id", StringType()),
        StructField("append_time_ms", LongType()),
        StructField("lock_deadline_ms", LongType()),
        StructField("start_offset", LongType()),
        StructField("reason", StringType()),
        StructField("dead_letter_topic", StringType()),
        StructField("runs", ArrayType(ArrayType(StringType()))),
        StructField("client_id", StringType()),
    ]
)
HISTORY_SCHEMA = StructType(
    [
        StructField("version", IntegerType()),
        StructField("leader", IntegerType()),
        StructField("incarnation", LongType()),
        StructField("sequence", LongType()),
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("state_epoch", IntegerType()),
        StructField("leader_epoch", IntegerType()),
        StructField("events", ArrayType(EVENT_SCHEMA)),
    ]
)
