"""Metrics of a share coordinator, and their source for scrapes.

The store counts appends and loads, and the operations count results. All other values are read at each scrape.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

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

CLAIM_OUTCOMES = ("won", "superseded", "again", "refused", "unreachable")
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
CLAIMS = counter(
    "share_coordinator_state_log_claims",
    "Claims of state logs in an existing cluster, by outcome (won, superseded, again, refused, unreachable).",
    "outcome",
)
TRUNCATIONS = counter(
    "share_coordinator_state_log_truncations",
    "How often an existing cluster had lost confirmed state records, which were written again from memory.",
)
VOID_BATCHES = counter(
    "share_coordinator_state_log_void_batches",
    "Batches that this node has read in state logs and that do not count, because their writers had lost the log.",
)
LOG_RECORDS = gauge(
    "share_coordinator_state_log_records", "Offsets between the beginning and the end of this node's state logs."
)
LIVE_RECORDS = gauge("share_coordinator_state_log_live_records", "Records of this node's state logs that are needed.")

FAMILIES = (
    *(OPERATIONS, RECORDS, APPEND_SECONDS, APPEND_SIZE, APPEND_BYTES, APPEND_FAILURES),
    *(LOAD_SECONDS, LOAD_FAILURES, DAMAGED, CORRUPT),
    *(CLAIMS, TRUNCATIONS, VOID_BATCHES, LOG_RECORDS, LIVE_RECORDS),
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
        self.claims: Counter[str] = Counter()
        self.truncations = 0

    def answered(self, operations: Sequence[Operation], results: Iterable[Result]) -> None:
        """Counts the results of a request's operations, given in the same order."""
        counts = self.operations
        for operation, result in zip(operations, results, strict=True):
            key = (type(operation), result.error_code)
            counts[key] = counts.get(key, 0) + 1

    def appended(self, records: Sequence[Record], writes: Sequence[Write], seconds: float) -> None:
        """Counts one durable write."""
        self.records_appended(records, sum([len(write.key) + len(write.value or b"") for write in writes]), seconds)

    def records_appended(self, records: Sequence[Record], size_bytes: int, seconds: float) -> None:
        """Counts one durable write of so many bytes of keys and values."""
        for record in records:
            kind = type(record)
            self.records[kind] = self.records.get(kind, 0) + 1
        self.append_seconds.observe(seconds)
        self.append_size.observe(len(records))
        self.append_bytes += size_bytes

    def append_failed(self, seconds: float) -> None:
        self.append_seconds.observe(seconds)
        self.append_failures += 1


class MeasuredEngine(Protocol):
    """The part of an engine that a scrape reads."""

    @property
    def corrupt_count(self) -> int: ...

    def read_metrics(self, readings: Readings) -> None: ...


class ShareCoordinatorSource:
    """Metrics of one share coordinator for a scrape; `engine` is called at each scrape, None before the start."""

    def __init__(self, state: StateMetrics, moves: Source, engine: Callable[[], MeasuredEngine | None]) -> None:
        self._state = state
        self._moves = moves
        self._engine = engine

    def read(self, readings: Readings) -> None:
        state, engine = self._state, self._engine()
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
        readings.add(CORRUPT, 0 if engine is None else engine.corrupt_count)
        self._moves.read(readings)
        if engine is not None:
            engine.read_metrics(readings)


def read_store_metrics(readings: Readings, store: ChecksummedStore) -> None:
    """The metrics of an engine with a store."""
    maintained = store.maintained
    readings.add(DAMAGED, 0 if maintained is None else len(maintained.damaged_families()))
    STORE.read(readings, store)


def read_log_metrics(
    readings: Readings, state: StateMetrics, *, log_records: int, live_records: int, void_batches: int
) -> None:
    """The metrics of an engine with logs in an existing cluster."""
    for outcome in CLAIM_OUTCOMES:
        readings.add(CLAIMS, state.claims[outcome], outcome)
    readings.add(TRUNCATIONS, state.truncations)
    readings.add(VOID_BATCHES, void_batches)
    readings.add(LOG_RECORDS, log_records)
    readings.add(LIVE_RECORDS, live_records)
