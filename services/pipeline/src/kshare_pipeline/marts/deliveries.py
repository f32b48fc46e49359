"""Deliveries derived from events: each piece of an acquired run, with the end of its acquisition.

The events of a share-partition are processed in order (leader epoch, incarnation, sequence). Acquired offsets are kept
as non-overlapping runs. An event that ends an acquisition removes its offsets, in pieces where the runs of the two
events differ. So memory holds the records in flight of one share-partition, independent of the length of its history.

If events were lost, an end may have no known acquisition. An acquisition without an end in the history has the outcome
`unknown` (its records were acquired again) or `forgotten` (its leader lost or left the share-partition, so its locks
are gone).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from kshare_core.delivery_history import EventType

ENDS = (EventType.ACCEPTED, EventType.RELEASED, EventType.REJECTED, EventType.EXPIRED)
"""Events that end an acquisition: the outcomes."""
UNKNOWN = "unknown"
FORGOTTEN = "forgotten"
SHARE_PARTITION = ("group", "topic", "topic_id", "partition")
ORDER = ("leader_epoch", "incarnation", "sequence")
EVENT_COLUMNS = (
    *SHARE_PARTITION,
    *ORDER,
    "event",
    "time_ms",
    "first_offset",
    "last_offset",
    "delivery_count",
    "member_id",
    "append_time_ms",
    "reason",
)
"""The columns of an event that `deliveries_of` uses."""
DELIVERIES_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int64()),
        ("delivery_count", pa.int32()),
        ("member_id", pa.string()),
        ("append_time_ms", pa.int64()),
        ("acquired_ms", pa.int64()),
        ("ended_ms", pa.int64()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
    ]
)
"""`acquired_ms` and `append_time_ms` are null if the acquisition is not in the history."""
SPARK_SCHEMA = (
    "group string, topic string, topic_id string, partition int, first_offset bigint, last_offset bigint,"
    " records bigint, delivery_count int, member_id string, append_time_ms bigint, acquired_ms bigint,"
    " ended_ms bigint, outcome string, reason string"
)
ROWS_OF_A_BATCH = 10_000
Row = dict[str, Any]


class Acquired(NamedTuple):
    """A run in flight."""

    first_offset: int
    last_offset: int
    delivery_count: int | None
    member_id: str | None
    append_time_ms: int | None
    acquired_ms: int


class InFlight:
    """The acquired runs of one share-partition."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[Acquired] = []

    def add(self, run: Acquired) -> None:
        """Adds an acquired run; `take` has removed its offsets before."""
        at = bisect_left(self._firsts, run.first_offset)
        self._firsts.insert(at, run.first_offset)
        self._runs.insert(at, run)

    def take(self, first: int, last: int) -> list[Acquired]:
        """Removes these offsets and returns the pieces of runs that had them, in order."""
        begin = max(bisect_left(self._firsts, first) - 1, 0)
        if begin < len(self._runs) and self._runs[begin].last_offset < first:
            begin += 1
        end = begin
        taken: list[Acquired] = []
        kept: list[Acquired] = []
        while end < len(self._runs) and self._firsts[end] <= last:
            run = self._runs[end]
            if run.first_offset < first:
                kept.append(run._replace(last_offset=first - 1))
            if run.last_offset > last:
                kept.append(run._replace(first_offset=last + 1))
            taken.append(
                run._replace(first_offset=max(first, run.first_offset), last_offset=min(last, run.last_offset))
            )
            end += 1
        self._runs[begin:end] = kept
        self._firsts[begin:end] = [run.first_offset for run in kept]
        return taken

    def take_all(self) -> list[Acquired]:
        runs = self._runs
        self._firsts, self._runs = [], []
        return runs


def deliveries_of(events: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """The deliveries that ended, in the order of their ends; `events` are ordered by SHARE_PARTITION and ORDER."""
    known: tuple[Any, ...] = ()
    in_flight = InFlight()
    for event in events:
        share_partition = tuple([event[name] for name in SHARE_PARTITION])
        if share_partition != known:
            known, in_flight = share_partition, InFlight()
        yield from _ended(in_flight, event)


def _ended(in_flight: InFlight, event: Mapping[str, Any]) -> Iterator[Row]:
    kind = event["event"]
    if kind in (EventType.LOADED, EventType.UNLOADED):
        yield from [_row(event, run, FORGOTTEN) for run in in_flight.take_all()]
    elif kind == EventType.ACQUIRED:
        first, last = event["first_offset"], event["last_offset"]
        yield from [_row(event, run, UNKNOWN) for run in in_flight.take(first, last)]
        in_flight.add(
            Acquired(
                first, last, event["delivery_count"], event["member_id"], event["append_time_ms"], event["time_ms"]
            )
        )
    elif kind in ENDS:
        yield from _with_gaps(in_flight, event)
    elif kind == EventType.ARCHIVED:  # usually of records that no member holds; otherwise it ends the acquisition
        first, last = event["first_offset"], event["last_offset"]
        yield from [_row(event, run, kind) for run in in_flight.take(first, last)]


def _with_gaps(in_flight: InFlight, event: Mapping[str, Any]) -> Iterator[Row]:
    """The pieces of the event's run; pieces without a known acquisition are included."""
    expected, last = event["first_offset"], event["last_offset"]
    for run in in_flight.take(expected, last):
        if run.first_offset > expected:
            yield _row(event, _not_seen(event, expected, run.first_offset - 1), event["event"])
        yield _row(event, run, event["event"])
        expected = run.last_offset + 1
    if expected <= last:
        yield _row(event, _not_seen(event, expected, last), event["event"])


def _not_seen(event: Mapping[str, Any], first: int, last: int) -> Row:
    found: Row = {name: event[name] for name in ("delivery_count", "member_id")}
    return {**found, "first_offset": first, "last_offset": last, "append_time_ms": None, "acquired_ms": None}


def _row(event: Mapping[str, Any], run: Acquired | Row, outcome: str) -> Row:
    delivery = run._asdict() if isinstance(run, Acquired) else run
    return {
        **{name: event[name] for name in SHARE_PARTITION},
        **delivery,
        "records": delivery["last_offset"] - delivery["first_offset"] + 1,
        "ended_ms": event["time_ms"],
        "outcome": str(outcome),
        "reason": event["reason"] if outcome not in (UNKNOWN, FORGOTTEN) else None,
    }


def delivery_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`, over events with EVENT_COLUMNS in order."""
    rows: list[Row] = []
    for row in deliveries_of(event for batch in batches for event in batch.to_pylist()):
        rows.append(row)
        if len(rows) >= ROWS_OF_A_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=DELIVERIES_SCHEMA)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=DELIVERIES_SCHEMA)
