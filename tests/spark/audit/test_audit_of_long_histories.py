"""The audit's memory does not grow with the history, and it still knows what it must; tables of single rules."""

from __future__ import annotations

import pytest

from kshare.audit.direct import audit_events
from kshare.audit.events import HistoryEvent, SharePartitionId
from kshare.audit.findings import FINDINGS_LIMIT, SharePartitionAudit
from kshare.audit.offset_runs import ENDED_RUNS_KEPT
from kshare.audit.share_partition import SharePartitionAuditor
from kshare_core.delivery_history import DurableRun
from support.pipeline.told_history import faults_of, unproven_of

PLACE = SharePartitionId("g", "id", 0, "t")


class Teller:
    """One leader that numbers what it tells."""

    def __init__(self) -> None:
        self.sequence = 0
        self.events: list[HistoryEvent] = []

    def tell(self, kind: str, first: int = 0, last: int = 0, count: int = 1, **fields: object) -> HistoryEvent:
        event = HistoryEvent(1, 1, self.sequence, 1, 1, kind, self.sequence, first, last, count, "m")._replace(**fields)  # type: ignore[arg-type]
        self.sequence += 1
        self.events.append(event)
        return event

    def audit(self, limit: int = 10) -> SharePartitionAudit:
        return audit_events(PLACE, self.events, limit)


def test_memory_is_bounded_and_forgotten_offsets_have_ended() -> None:
    auditor = SharePartitionAuditor(PLACE)
    teller = Teller()
    auditor.apply(teller.tell("loaded", start_offset=0))
    most = 0
    total = 6 * ENDED_RUNS_KEPT
    for offset in range(total):
        auditor.apply(teller.tell("acquired", offset, offset))
        auditor.apply(teller.tell("accepted", offset, offset))
        most = max(most, auditor.runs_known)
    assert ENDED_RUNS_KEPT < most <= 2 * ENDED_RUNS_KEPT + 1
    again = teller.tell("acquired", 5, 5, 2)
    auditor.apply(again)
    auditor.apply(teller.tell("accepted", 6, 6, 1))
    audit = auditor.finish()
    assert faults_of(audit) == {"delivered_after_end": [5], "ended_after_end": [6]}
    assert audit.offsets == {"accepted": total}
    assert (audit.first_offset, audit.end_offset) == (0, total)


def test_what_is_held_keeps_all_behind_it() -> None:
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    teller.tell("acquired", 0, 0)
    for offset in range(1, 3 * ENDED_RUNS_KEPT):
        teller.tell("acquired", offset, offset)
        teller.tell("accepted", offset, offset)
    teller.tell("released", 0, 0)
    teller.tell("acquired", 0, 0, 2)
    audit = teller.audit()
    assert audit.findings == []
    assert audit.offsets == {"accepted": 3 * ENDED_RUNS_KEPT - 1, "acquired": 1}


def test_more_faults_than_are_kept_are_counted() -> None:
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    for offset in range(0, 4 * FINDINGS_LIMIT, 2):
        teller.tell("accepted", offset, offset)
    audit = teller.audit()
    assert audit.faults == 2 * FINDINGS_LIMIT
    assert len(audit.findings) == FINDINGS_LIMIT


@pytest.mark.parametrize("moved_first", [True, False])
def test_a_history_that_begins_in_the_middle_knows_nothing_of_what_is_before(moved_first: bool) -> None:
    teller = Teller()
    told = [("accepted", {"first_offset": 38, "last_offset": 46}), ("start_offset_moved", {"start_offset": 23})]
    for kind, fields in reversed(told) if moved_first else told:
        teller.tell(kind, **fields)
    teller.tell("unloaded")
    teller.tell(
        "loaded",
        start_offset=23,
        runs=(DurableRun(23, 37, "Available", 1), DurableRun(38, 46, "Acknowledged", 1)),
    )
    audit = teller.audit()
    assert faults_of(audit) == {}
    assert (audit.first_offset, audit.end_offset) == (23, 47)
    assert audit.offsets == {"available": 15, "accepted": 9}


LOADED_AGAIN = [
    # before, the run that is loaded, complete: the rule and whether it is a fault
    ("held", DurableRun(10, 14, "Available", 0), None),
    ("held", DurableRun(10, 14, "Available", 1), None),
    ("held", DurableRun(10, 14, "Available", 2), "fault delivery_count"),
    ("held", DurableRun(10, 14, "Acknowledged", 1), "unproven unseen"),
    ("held", DurableRun(10, 14, "Archived", 1), "unproven unseen"),
    ("released", DurableRun(10, 14, "Available", 1), None),
    ("released", DurableRun(10, 14, "Available", 0), "fault count_forgotten"),
    ("released", DurableRun(10, 14, "Available", 2), "fault delivery_count"),
    ("released", DurableRun(10, 14, "Acknowledged", 1), "fault skipped"),
    ("released", DurableRun(10, 14, "Archiving", 1), None),
    ("accepted", DurableRun(10, 14, "Acknowledged", 1), None),
    ("accepted", DurableRun(10, 14, "Available", 1), "fault end_forgotten"),
    ("accepted", DurableRun(10, 14, "Archived", 1), "fault end_forgotten"),
    ("rejected", DurableRun(10, 14, "Archived", 1), None),
    ("rejected", DurableRun(10, 14, "Archiving", 1), None),
    ("rejected", DurableRun(10, 14, "Acknowledged", 1), "fault end_forgotten"),
    ("rejected", DurableRun(10, 14, "Available", 1), "fault end_forgotten"),
    ("missing", DurableRun(10, 14, "Available", 0), None),
    ("missing", DurableRun(10, 14, "Archived", 0), None),
    ("nothing", DurableRun(10, 14, "Available", 0), None),
    ("nothing", DurableRun(10, 14, "Archived", 0), "fault skipped"),
    ("nothing", DurableRun(10, 14, "Available", 1), "fault delivery_count"),
]


@pytest.mark.parametrize(("before", "run", "expected"), LOADED_AGAIN)
def test_what_is_loaded_agrees_with_what_was_durable(before: str, run: DurableRun, expected: str | None) -> None:
    """Nothing is missing between the two: the offsets before 10 are held, so that the start offset stays."""
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    teller.tell("acquired", 0, 9)
    if before == "missing":
        teller.tell("archived", 10, 14, 0, reason="missing_in_log")
    elif before != "nothing":
        teller.tell("acquired", 10, 14)
        if before != "held":
            teller.tell(before, 10, 14)
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=0, runs=(DurableRun(0, 9, "Available", 0), run))
    audit = teller.audit()
    found = {f"fault {rule}": offsets for rule, offsets in faults_of(audit).items()}
    found |= {f"unproven {rule}": offsets for rule, offsets in unproven_of(audit).items()}
    assert found == ({} if expected is None else {expected: list(range(10, 15))})


def test_a_dead_letter_is_told_again_after_a_reload_that_shows_it_archiving() -> None:
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    teller.tell("acquired", 0, 4)
    teller.tell("rejected", 0, 4)
    teller.tell("dead_lettered", 0, 4, reason="rejected")
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=0, runs=(DurableRun(0, 4, "Archiving", 1),))
    teller.tell("dead_lettered", 0, 4, reason="rejected")
    teller.tell("archived", 0, 4, reason="rejected")
    teller.tell("start_offset_moved", start_offset=5)
    audit = teller.audit()
    assert audit.findings == []
    assert audit.offsets == {"dead_lettered": 5}
    teller.tell("dead_lettered", 2, 3, reason="rejected")
    assert faults_of(teller.audit()) == {"dead_lettered_twice": [2, 3]}


def test_a_new_state_epoch_begins_anew() -> None:
    """An administrator sets the offsets back; what was accepted is delivered again, as it should be."""
    teller = Teller()
    teller.tell("loaded", start_offset=5)
    teller.tell("acquired", 5, 9)
    teller.tell("accepted", 5, 7)
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=0, state_epoch=2)
    teller.tell("acquired", 0, 9, state_epoch=2)
    teller.tell("accepted", 0, 9, state_epoch=2)
    audit = teller.audit()
    assert audit.findings == []
    assert audit.offsets == {"accepted": 13, "reset": 2}


def test_a_state_that_was_cut_because_its_log_lost_records_begins_anew() -> None:
    """Other records lie at the offsets that were accepted. Later loads tell of the same cut, which is nothing new."""
    teller = Teller()
    teller.tell("loaded", start_offset=5)
    teller.tell("acquired", 5, 9)
    teller.tell("accepted", 5, 9)
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=0, reason="log_truncated:6")
    teller.tell("acquired", 0, 9)
    teller.tell("accepted", 0, 9)
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=10, reason="log_truncated:6")
    assert teller.audit().findings == []
    teller.tell("unloaded")
    teller.tell("loaded", start_offset=0, reason="log_truncated:6")
    assert faults_of(teller.audit())


def test_a_delivery_that_no_client_saw_does_not_count() -> None:
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    teller.tell("acquired", 0, 4)
    teller.tell("released", 0, 4, reason="not_delivered")
    teller.tell("acquired", 0, 4, 1)
    assert teller.audit().findings == []
    teller.tell("released", 0, 4, reason="session_ended")
    teller.tell("acquired", 0, 4, 1)
    assert faults_of(teller.audit()) == {"delivery_count": [0, 1, 2, 3, 4]}


def test_a_renewal_is_the_holders() -> None:
    teller = Teller()
    teller.tell("loaded", start_offset=0)
    teller.tell("acquired", 0, 4)
    teller.tell("renewed", 0, 4)
    assert teller.audit().findings == []
    teller.tell("renewed", 3, 3, member_id="n")
    teller.tell("renewed", 7, 7)
    assert faults_of(teller.audit()) == {"ended_by_another": [3], "ended_unheld": [7]}
