"""The audit of runs against an audit with an entry for each offset: any history gives the same findings."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare.audit import share_partition as audited
from kshare.audit.direct import audit_events
from kshare.audit.events import HistoryEvent, SharePartitionId
from kshare.audit.findings import SharePartitionAudit
from kshare_core.delivery_history import DurableRun, EventType
from support.pipeline.naive_audit import audit_offsets

PLACE = SharePartitionId("g", "id", 0, "t")
LIMIT = 3
OFFSETS = st.integers(0, 14)
COUNTS = st.integers(1, 4)
MEMBERS = st.sampled_from(["a", "b"])
OFTEN = ["acquired", "acquired", "acquired", "accepted", "accepted", "released", "archived", "loaded"]
KINDS = [*OFTEN, *(str(kind) for kind in EventType)]


@pytest.fixture(autouse=True)
def no_limit_of_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "FINDINGS_LIMIT", 100_000)


@st.composite
def runs_of_offsets(draw: st.DrawFn) -> tuple[int, int]:
    first = draw(OFFSETS)
    return first, first + draw(st.integers(0, 5))


@st.composite
def durable_runs(draw: st.DrawFn, start: int) -> tuple[DurableRun, ...]:
    runs: list[DurableRun] = []
    position = start
    for _ in range(draw(st.integers(0, 3))):
        first = position + draw(st.sampled_from([0, 0, 2]))
        last = first + draw(st.integers(0, 4))
        state = draw(st.sampled_from(["Available", "Acknowledged", "Archiving", "Archived"]))
        runs.append(DurableRun(first, last, state, draw(st.integers(0, 3))))
        position = last + 1
    return tuple(runs)


@st.composite
def what_happened(draw: st.DrawFn) -> dict[str, object]:
    """The fields of one event that are its own."""
    kind = draw(st.sampled_from(KINDS))
    if kind == "unloaded":
        return {"event": kind}
    if kind in ("loaded", "start_offset_moved"):
        start = draw(OFFSETS)
        runs = draw(durable_runs(start)) if kind == "loaded" else None
        return {"event": kind, "start_offset": start, "runs": runs}
    first, last = draw(runs_of_offsets())
    reasons: dict[str, list[str | None]] = {
        "released": [None, "not_delivered", "session_ended"],
        "archived": ["gap", "missing_in_log", "below_log_start", "delivery_count_limit", "rejected", None],
        "dead_lettered": ["delivery_count_limit", "rejected"],
    }
    return {
        "event": kind,
        "first_offset": first,
        "last_offset": last,
        "delivery_count": draw(COUNTS),
        "member_id": draw(st.one_of(MEMBERS, st.none())),
        "reason": draw(st.sampled_from(reasons.get(kind, [None]))),
    }


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryEvent]:
    """Anything: most events follow each other, some are lost, and leaders and epochs change now and then."""
    leader_epoch = incarnation = state_epoch = 1
    sequences: dict[int, int] = {}
    events: list[HistoryEvent] = []
    for _ in range(draw(st.integers(0, 25))):
        turn = draw(st.integers(0, 24))
        if turn == 0:
            leader_epoch += draw(st.integers(0, 2))
            incarnation = draw(st.integers(1, 3))
        elif turn == 1:
            state_epoch = max(1, state_epoch + draw(st.sampled_from([1, 1, -1])))
        sequence = sequences.get(incarnation, -1) + (draw(st.sampled_from([0, 2])) if turn == 2 else 1)
        sequences[incarnation] = max(sequence, 0)
        fields = draw(what_happened())
        events.append(
            HistoryEvent(leader_epoch, incarnation, max(sequence, 0), 1, state_epoch, time_ms=0, **fields)  # type: ignore[arg-type]
        )
    return events


def findings_of(audit: SharePartitionAudit) -> Counter[tuple[str, str, int]]:
    found: Counter[tuple[str, str, int]] = Counter()
    for finding in audit.findings:
        for offset in range(finding.first_offset, finding.last_offset + 1):
            found[str(finding.severity), str(finding.rule), offset] += 1
    return found


@settings(max_examples=150, deadline=None)
@given(histories())
def test_runs_say_what_single_offsets_say(history: list[HistoryEvent]) -> None:
    audit = audit_events(PLACE, history, LIMIT)
    naive = audit_offsets(history, delivery_count_limit=LIMIT)
    assert findings_of(audit) == naive.findings
    assert {str(name): count for name, count in audit.offsets.items()} == dict(naive.outcomes)
