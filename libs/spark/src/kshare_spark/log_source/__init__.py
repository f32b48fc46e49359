"""The Spark format `kshare-log`: topics by plain offsets, batch and stream, exactly replayable.

    stream = spark.readStream.format("kshare-log").option("kafka.bootstrap.servers", "127.0.0.1:9092")
    records = stream.option("subscribe", "orders").load()

Columns and options are those of Spark's Kafka source (`options`). Spark's Python workers read the partitions. An offset
in the checkpoint has the first and the end offset of its batch for each partition (`offsets`), so a repeated batch
reads the same records, even the first batch.

Read first: `options`, `offsets` (pure), then `data_source` (what Spark calls), `arrow` (messages to Arrow).
"""

from __future__ import annotations

from kshare_spark.log_source.data_source import LogDataSource

__all__ = ["LogDataSource"]
