"""RocksDB's own metrics of a role's store."""

from __future__ import annotations

from kshare_runtime.ports import FiguredStore, KeyValueStore
from kshare_servicekit.metric_families import Family, Readings, counter, gauge


class StoreFamilies:
    """The metric families of one role's store; `role` as in metric names. A store in memory has no samples."""

    def __init__(self, role: str) -> None:
        self.memtable_bytes = gauge(
            f"{role}_rocksdb_memtable_bytes", "Memory of write buffers that are not flushed yet."
        )
        self.table_bytes = gauge(
            f"{role}_rocksdb_table_bytes",
            "Size on disk of the tables of all column families and, of a leader, of its files of large batches.",
        )
        self.pending_compaction_bytes = gauge(
            f"{role}_rocksdb_pending_compaction_bytes",
            "Estimated bytes that compaction has to rewrite; growing if it lags behind.",
        )
        self.block_cache_bytes = gauge(f"{role}_rocksdb_block_cache_bytes", "Used memory of the block cache.")
        self.compactions = gauge(f"{role}_rocksdb_running_compactions", "Running compactions.")
        self.flushes = gauge(f"{role}_rocksdb_running_flushes", "Running flushes of write buffers.")
        self.background_errors = gauge(
            f"{role}_rocksdb_background_errors", "Errors of flushes and compactions since the store was opened."
        )
        self.refuses_writes = gauge(
            f"{role}_store_refuses_writes", "1 from a failed write until the store is reopened, else 0."
        )
        self.mended = counter(f"{role}_store_mended", "Reopenings of the store after a failed write.")
        self.families: tuple[Family, ...] = (
            *(self.memtable_bytes, self.table_bytes, self.pending_compaction_bytes, self.block_cache_bytes),
            *(self.compactions, self.flushes, self.background_errors, self.refuses_writes, self.mended),
        )

    def read(self, readings: Readings, store: KeyValueStore | FiguredStore | None) -> None:
        """Adds the samples of an open store."""
        figures = store.figures() if isinstance(store, FiguredStore) else None
        if figures is not None:
            for family, value in zip(self.families, figures, strict=True):
                readings.add(family, value)
