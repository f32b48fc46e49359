"""The Spark format `kshare-log`: topics by plain offsets, batch and stream, exactly replayable.

    stream = spark.readStream.format("kshare-log").option("kafka.bootstrap.servers", "127.0.0.1:9092")
    records = stream.option("subscribe", "orders").load()

The columns are those of Spark's Kafka source, and so are the options (`options`). Partitions are read in Spark's Python
workers. An offset in the checkpoint says for each partition from where to where its batch goes (`offsets`), so a batch
that is run again reads the same records, the first one too.

Read first: `options`, `offsets` (pure), then `data_source` (what Spark calls), `arrow` (messages to Arrow).
"""

from __future__ import annotations

from kshare_spark.log_source.data_source import LogDataSource

__all__ = ["LogDataSource"]
