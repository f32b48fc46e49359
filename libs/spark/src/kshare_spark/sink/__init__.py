"""Writing rows into topics: the writers of the format `kshare`, batch and stream.

    frame.write.format("kshare").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("topic", "orders")

At least once: a task's records are stored before it ends, and a task that is run again stores them again. A record that
was not stored fails its task. Read first: `columns` (pure: which columns a frame must have), then `writers`.
"""

from __future__ import annotations

from kshare_spark.sink.writers import DeliveryFailed, KshareBatchWriter, KshareStreamWriter, StoredRecords

__all__ = ["DeliveryFailed", "KshareBatchWriter", "KshareStreamWriter", "StoredRecords"]
