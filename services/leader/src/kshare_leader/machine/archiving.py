"""Runs whose dead letters are due (KIP-1191), for the dead-letter service."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from kshare_core.states import RecordState
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.in_flight import InFlightWindow
from kshare_leader.machine.interval_map import NO_WRITE, Run
from kshare_leader.machine.transitions import ArchivingReason


class ArchivingRun(NamedTuple):
    """Records whose dead letters are due: stored as Archiving, with no write to Archived pending."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: ArchivingReason


def archiving_runs(window: InFlightWindow, limit: int, limits: GroupLimits) -> list[ArchivingRun]:
    """The first `limit` due runs of the window, in the order of offsets."""
    if not window.counts[RecordState.ARCHIVING]:
        return []
    runs = window.runs.runs_in(RecordState.ARCHIVING, window.start_offset, window.end_offset - 1)
    due = (run for run in runs if run.write_id == NO_WRITE)
    return [
        ArchivingRun(run.first_offset, run.last_offset, run.delivery_count, _reason(run, limits))
        for run in islice(due, limit)
    ]


def _reason(run: Run, limits: GroupLimits) -> ArchivingReason:
    """The reason. The share coordinator does not store it: a run at the limit is assumed to have exceeded it."""
    if run.reason is not None:
        return run.reason
    if run.delivery_count >= limits.delivery_count_limit:
        return ArchivingReason.DELIVERY_COUNT_EXCEEDED
    return ArchivingReason.REJECTED
