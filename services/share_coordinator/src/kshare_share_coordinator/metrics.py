"""Metrics of a share coordinator, and their source for scrapes.

The store counts appends and loads, and the operations count results. All other values are read at each scrape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from kshare_core.distribution import DURATION_BOUNDS_S, Distribution, no_clock
from kshare_core.errors import ErrorCode
from kshare_runtime.ports import Write
from kshare_servicekit.metric_families import Readings, Source, counter, gauge, histogram
from kshare_servicekit.store_metrics import StoreFamilies
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import (
    Operation,
    Result,
)
from kshare_share_coordinator.machine.share_group_offset import Record, ShareSnapshot, ShareTombstone, ShareUpdate
from kshare_share_coordinator.reassignment import metrics as reassignment_metrics

APPEND_SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)

OPERATIONS = counter(
    "share_coordinator_operations",
    "Completed operations on single share-partitions, by operation (initialize, read, write, delete, "
    "read_summary) and Kafka's error code; a write with NONE is durable.",
    "operation",
    "error",
)
RECORDS = counter(
    "share_coordinator_state_records", "State records made durable, by kind (snapshot, update, tombstone).", "kind"
)
APPEND_SECONDS = histogram(
    "share_coordinator_state_append_duration_seconds",
    "Duration of one atomic write of all records of a turn, with its fsync, in seconds, including failed ones.",
)
APPEND_SIZE = histogram(
    "share_coordinator_state_append_records", "State records per atomic write, which share one fsync."
)
APPEND_BYTES = counter("share_coordinator_state_append_bytes", "Keys and values of durable state writes, in bytes.")
APPEND_FAILURES = counter("share_coordinator_state_append_failures", "State writes that failed on disk.")
LOAD_SECONDS = histogram(
    "share_coordinator_state_load_duration_seconds",
    "Duration of loading one share-partition's state from disk, in seconds, including failed loads.",
)
LOAD_FAILURES = counter(
    "share_coordinator_state_load_failures", "Loads that failed on disk, or because of a corrupt record."
)
DAMAGED = gauge(
    "share_coordinator_damaged_families",
    "State partitions and other column families with damaged files; they are not served.",
)
CORRUPT = gauge("share_coordinator_corrupt_share_partitions", "Share-partitions known to have a corrupt state record.")
STORE = StoreFamilies("share_coordinator")

FAMILIES = (
    *(OPERATIONS, RECORDS, APPEND_SECONDS, APPEND_SIZE, APPEND_BYTES, APPEND_FAILURES),
    *(LOAD_SECONDS, LOAD_FAILURES, DAMAGED, CORRUPT),
    *reassignment_metrics.FAMILIES,
    *STORE.families,
)

_RECORD_NAMES: dict[type, str] = {ShareSnapshot: "snapshot", ShareUpdate: "update", ShareTombstone: "tombstone"}


def _operation_name(operation: type) -> str:
    """The label of an operation: ReadStateSummary is read_summary."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation.__name__.replace("State", "")).lower()


class StateMetrics:
    """Counted by the store and by the operations; `now` is a steady clock in seconds."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = no_clock
        self.operations: dict[tuple[type, int], int] = {}
        self.records: dict[type, int] = {}
        self.append_seconds = Distribution(DURATION_BOUNDS_S)
        self.append_size = Distribution(APPEND_SIZE_BOUNDS)
        self.append_bytes = 0
        self.append_failures = 0
        self.load_seconds = Distribution(DURATION_BOUNDS_S)
        self.load_failures = 0

    def answered(self, operations: Sequence[Operation], results: Iterable[Result]) -> None:
        """Counts the results of a request's operations, given in the same order."""
        counts = self.operations
        for operation, result in zip(operations, results, strict=True):
            key = (type(operation), result.error_code)
            counts[key] = counts.get(key, 0) + 1

    def appended(self, records: Sequence[Record], writes: Sequence[Write], seconds: float) -> None:
        """Counts one durable write."""
        for record in records:
            kind = type(record)
            self.records[kind] = self.records.get(kind, 0) + 1
        self.append_seconds.observe(seconds)
        self.append_size.observe(len(records))
        self.append_bytes += sum([len(write.key) + len(write.value or b"") for write in writes])

    def append_failed(self, seconds: float) -> None:
        self.append_seconds.observe(seconds)
        self.append_failures += 1


class ShareCoordinatorSource:
    """Metrics of one share coordinator for a scrape; `store` is called at each scrape, None before the start."""

    def __init__(
        self,
        state: StateMetrics,
        moves: Source,
        store: Callable[[], ChecksummedStore | None],
        corrupt_count: Callable[[], int],
    ) -> None:
        self._state = state
        self._moves = moves
        self._store = store
        self._corrupt_count = corrupt_count

    def read(self, readings: Readings) -> None:
        state = self._state
        for (operation, code), count in state.operations.items():
            readings.add(OPERATIONS, count, _operation_name(operation), ErrorCode(code).name)
        for kind, name in _RECORD_NAMES.items():
            readings.add(RECORDS, state.records.get(kind, 0), name)
        readings.add(APPEND_SECONDS, state.append_seconds)
        readings.add(APPEND_SIZE, state.append_size)
        readings.add(APPEND_BYTES, state.append_bytes)
        readings.add(APPEND_FAILURES, state.append_failures)
        readings.add(LOAD_SECONDS, state.load_seconds)
        readings.add(LOAD_FAILURES, state.load_failures)
        readings.add(CORRUPT, self._corrupt_count())
        self._moves.read(readings)
        store = self._store()
        if store is not None:
            maintained = store.maintained
            readings.add(DAMAGED, 0 if maintained is None else len(maintained.damaged_families()))
            STORE.read(readings, store)
