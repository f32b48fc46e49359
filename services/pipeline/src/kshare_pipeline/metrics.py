"""The metrics of the pipeline service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kshare_servicekit.metric_families import Readings, counter, gauge

BATCHES = counter("pipeline_batches", "Batches of the history topic that are in the tables.")
RECORDS = counter("pipeline_records", "Records of the history topic that were read.")
EVENTS = counter("pipeline_events", "Rows that were added to the table events.")
REPEATED = counter("pipeline_repeated_events", "Events that came again and were not added.")
QUARANTINED = counter("pipeline_quarantined_records", "Records that are no delivery history, or not wholly.")
LAG = gauge("pipeline_lag_offsets", "Offsets of the history topic that are not in the tables yet, when last looked.")
RUNS = counter("pipeline_runs", "Looks at the topic, by how they ended.", "result")
RUN_SECONDS = gauge("pipeline_last_run_seconds", "How long the last look took, with marts where they were due.")
LAST_SUCCESS = gauge("pipeline_last_success_timestamp_seconds", "When a look last ended well; 0: never.")
MART_DAYS = counter("pipeline_mart_days", "Days whose marts were computed.")
MARTS_LAST_SUCCESS = gauge(
    "pipeline_marts_last_success_timestamp_seconds", "When the marts were last in step; 0: never."
)

FAMILIES = (
    BATCHES,
    RECORDS,
    EVENTS,
    REPEATED,
    QUARANTINED,
    LAG,
    RUNS,
    RUN_SECONDS,
    LAST_SUCCESS,
    MART_DAYS,
    MARTS_LAST_SUCCESS,
)


@dataclass(slots=True)
class ReadCounts:
    """Counts of records and rows since the process began."""

    batches: int = 0
    records: int = 0
    """Records of the topic."""
    events: int = 0
    """Rows that were added to `events`."""
    repeated: int = 0
    """Events that were already in the table, or twice in the batch."""
    quarantined: int = 0


@dataclass(slots=True)
class ServiceCounts:
    """Counts of the service's work since the process began."""

    succeeded: int = 0
    failed: int = 0
    lag_offsets: int = 0
    run_seconds: float = 0.0
    last_success_ms: int = 0
    mart_days: int = 0
    marts_last_success_ms: int = 0


class PipelineMetrics:
    """The source of the process' metrics."""

    def __init__(self, service: ServiceCounts, read_counts: Callable[[], ReadCounts]) -> None:
        self._service = service
        self._read_counts = read_counts

    def read(self, readings: Readings) -> None:
        read, service = self._read_counts(), self._service
        readings.add(BATCHES, read.batches)
        readings.add(RECORDS, read.records)
        readings.add(EVENTS, read.events)
        readings.add(REPEATED, read.repeated)
        readings.add(QUARANTINED, read.quarantined)
        readings.add(LAG, service.lag_offsets)
        readings.add(RUNS, service.succeeded, "success")
        readings.add(RUNS, service.failed, "failure")
        readings.add(RUN_SECONDS, service.run_seconds)
        readings.add(LAST_SUCCESS, service.last_success_ms / 1000)
        readings.add(MART_DAYS, service.mart_days)
        readings.add(MARTS_LAST_SUCCESS, service.marts_last_success_ms / 1000)
