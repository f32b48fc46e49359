"""Which acquisition an end belongs to: tables, and any sequence of events against a model of single offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kshare_pipeline.marts.deliveries import DELIVERIES_SCHEMA, ENDS, deliveries_of, delivery_batches

PLACE = {"group": "g", "topic": "t", "topic_id": "T", "partition": 0}
EMPTY = dict.fromkeys(("first_offset", "last_offset", "delivery_count", "member_id", "append_time_ms", "reason"))
KINDS = ("acquired", *[str(end) for end in ENDS], "archived", "loaded", "unloaded", "renewed", "start_offset_moved")


def event(sequence: int, kind: str, first: int | None = None, last: int | None = None, **more: Any) -> dict[str, Any]:
    order = {"leader_epoch": 1, "incarnation": 1, "sequence": sequence}
    run = {"first_offset": first, "last_offset": last}
    return {**PLACE, **order, **EMPTY, **run, "event": kind, "time_ms": 100 * sequence, **more}


def short(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["first_offset"], row["last_offset"], row["outcome"], row["member_id"], row["acquired_ms"], row["ended_ms"])
        for row in rows
    ]


def test_an_end_may_cover_several_acquisitions_and_some_without_events() -> None:
    found = list(
        deliveries_of(
            [
                event(1, "acquired", 0, 9, member_id="a", delivery_count=1, append_time_ms=7),
                event(2, "acquired", 12, 19, member_id="b", delivery_count=3, append_time_ms=8),
                event(3, "accepted", 5, 14, member_id="x", delivery_count=9),
                event(4, "expired", 0, 30),
            ]
        )
    )
    assert short(found) == [
        (5, 9, "accepted", "a", 100, 300),
        (10, 11, "accepted", "x", None, 300),
        (12, 14, "accepted", "b", 200, 300),
        (0, 4, "expired", "a", 100, 400),
        (5, 14, "expired", None, None, 400),
        (15, 19, "expired", "b", 200, 400),
        (20, 30, "expired", None, None, 400),
    ]
    assert [row["delivery_count"] for row in found] == [1, 9, 3, 1, None, 3, None]
    assert [row["append_time_ms"] for row in found] == [7, None, 8, 7, None, 8, None]
    assert [row["records"] for row in found] == [5, 2, 3, 5, 10, 5, 11]


def test_what_a_leader_forgets_and_what_is_acquired_again_is_over() -> None:
    found = short(
        deliveries_of(
            [
                event(1, "acquired", 0, 9, member_id="a"),
                event(2, "acquired", 5, 6, member_id="b"),
                event(3, "renewed", 5, 6, member_id="b"),
                event(4, "archived", 0, 0, reason="below_log_start"),
                event(5, "archived", 40, 41, reason="missing_in_log"),
                event(6, "loaded"),
                event(7, "accepted", 5, 5, member_id="b"),
            ]
        )
    )
    assert found == [
        (5, 6, "unknown", "a", 100, 200),
        (0, 0, "archived", "a", 100, 400),
        (1, 4, "forgotten", "a", 100, 600),
        (5, 6, "forgotten", "b", 200, 600),
        (7, 9, "forgotten", "a", 100, 600),
        (5, 5, "accepted", "b", None, 700),
    ]


def test_share_partitions_have_nothing_to_do_with_each_other() -> None:
    other = {**event(2, "accepted", 0, 0), "partition": 1}
    found = list(deliveries_of([event(1, "acquired", 0, 0, member_id="a"), other]))
    assert [(row["partition"], row["acquired_ms"]) for row in found] == [(1, None)]


def test_batches_of_arrow_are_cut_anywhere() -> None:
    events = [event(1, "acquired", 0, 2**40, member_id="a", delivery_count=1), event(2, "accepted", 3, 2**40)]
    schema = pa.RecordBatch.from_pylist(events).schema
    batches = [pa.RecordBatch.from_pylist([one], schema=schema) for one in events]
    (found,) = delivery_batches(batches)
    assert found.schema == DELIVERIES_SCHEMA
    assert found.column("records").to_pylist() == [2**40 - 2]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for sequence in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, 12))
        last = draw(st.integers(first, 14))
        found.append(event(sequence, draw(st.sampled_from(KINDS)), first, last, member_id=f"m{sequence}"))
    return found


@given(histories())
def test_any_history_against_single_offsets(events: list[dict[str, Any]]) -> None:
    """Each offset that ends, ends with the acquisition that a dictionary of offsets has for it."""
    held: dict[int, int] = {}
    expected: list[tuple[int, str, int | None, int]] = []
    for one in events:
        kind, time_ms = one["event"], one["time_ms"]
        run = range(one["first_offset"], one["last_offset"] + 1)
        if kind in ("loaded", "unloaded"):
            expected += [(offset, "forgotten", held[offset], time_ms) for offset in sorted(held)]
            held.clear()
        elif kind == "acquired":
            expected += [(offset, "unknown", held[offset], time_ms) for offset in run if offset in held]
            held.update(dict.fromkeys(run, time_ms))
        elif kind in ENDS or kind == "archived":
            ended = [offset for offset in run if kind != "archived" or offset in held]
            expected += [(offset, kind, held.pop(offset, None), time_ms) for offset in ended]
    found = [
        (offset, row["outcome"], row["acquired_ms"], row["ended_ms"])
        for row in deliveries_of(events)
        for offset in range(row["first_offset"], row["last_offset"] + 1)
    ]
    assert found == expected
