"""Writing rows into topics: the writers of the format `kshare`, batch and stream.

    frame.write.format("kshare").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("topic", "orders")

Delivery is at least once: a task's records are stored before it ends, and a repeated task stores them again. A record
that could not be stored fails its task. Read `columns` (pure: the columns of a frame) first, then `writers`.
"""

from __future__ import annotations

from kshare_spark.sink.writers import DeliveryFailed, KshareBatchWriter, KshareStreamWriter, StoredRecords

__all__ = ["DeliveryFailed", "KshareBatchWriter", "KshareStreamWriter", "StoredRecords"]
