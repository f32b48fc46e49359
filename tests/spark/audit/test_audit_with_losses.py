"""Whatever is lost of a sound history, doubled or out of order, no fault comes of it: only unproven stretches."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from functools import cache

import pytest

from kshare.audit.direct import audit_records
from kshare_core.delivery_history import HistoryRecord
from support.pipeline.told_history import split_by_place
from support.simulation.plan import draw_plan
from support.simulation.rules.delivery_history import HistoryRun

SEEDS = (3, 5, 8)
"""With reloads, with records that are given up at their limit, and with crashes of leaders."""


@cache
def history_of(seed: int) -> tuple[HistoryRecord, ...]:
    """Single events of a run with faults, in order."""
    logging.disable(logging.CRITICAL)
    try:
        run = HistoryRun(draw_plan(seed))
        outcome = run.run()
        assert not outcome.failed, outcome.report()
    finally:
        logging.disable(logging.NOTSET)
    return tuple(record for told in split_by_place(run.records).values() for record in told.records)


def faults(records: list[HistoryRecord]) -> list[str]:
    return [
        str(finding) for audit in audit_records(records) for finding in audit.findings if finding.severity == "fault"
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
def test_lost_events_are_no_faults(seed: int, share: float) -> None:
    for attempt in range(10):
        draw = random.Random(f"{seed}/{share}/{attempt}")
        left = [record for record in history_of(seed) if draw.random() > share]
        assert faults(left) == [], f"attempt {attempt}"


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_stretches_are_no_faults(seed: int) -> None:
    """A leader that cannot publish for a while loses all of that time, also the `loaded` events in it."""
    whole = history_of(seed)
    for attempt in range(20):
        draw = random.Random(f"{seed}/{attempt}")
        times = sorted(record.events[0].time_ms for record in whole)
        begin = draw.choice(times)
        end = begin + draw.choice((100, 1_000, 10_000))
        left = [record for record in whole if not begin <= record.events[0].time_ms <= end]
        assert faults(left) == [], f"attempt {attempt}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_that_begins_or_ends_anywhere_has_no_fault(seed: int) -> None:
    whole = history_of(seed)
    times = sorted(record.events[0].time_ms for record in whole)
    for cut in times[:: max(1, len(times) // 20)]:
        assert faults([record for record in whole if record.events[0].time_ms >= cut]) == []
        assert faults([record for record in whole if record.events[0].time_ms < cut]) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_doubled_and_disordered_records_change_nothing(seed: int) -> None:
    whole = list(history_of(seed))
    draw = random.Random(seed)
    mixed = whole + draw.sample(whole, len(whole) // 3)
    draw.shuffle(mixed)
    for sound, other in zip(audit_records(whole), audit_records(mixed), strict=True):
        assert other.duplicates > sound.duplicates, "a leader that lost an answer publishes twice by itself"
        assert replace(other, duplicates=sound.duplicates) == sound
