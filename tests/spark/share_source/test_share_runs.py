"""Runs of offsets against sets of offsets; the offset's JSON; the ledger's rules; refusals that are narrowed down."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_spark.share_source.acknowledging import Acknowledging
from kshare_spark.share_source.ledger import Ledger
from kshare_spark.share_source.offset import UNACCEPTED_LIMIT, ShareOffset, UnknownOffset
from kshare_spark.share_source.runs import Place, Run, RunMap, split

A = Place("a", "id-a", 0)
B = Place("a", "id-a", 1)
Counts = dict[tuple[Place, int], int]


def counts_of(runs: RunMap) -> Counts:
    return {
        (place, offset): run.delivery_count
        for place, found in runs.items()
        for run in found
        for offset in range(run.first, run.last + 1)
    }


def is_in_order(runs: RunMap) -> bool:
    """Sorted, without overlaps, joined where that is possible, nothing empty."""
    for _, found in runs.items():
        for left, right in itertools.pairwise(found):
            if right.first <= left.last:
                return False
            if right.first == left.last + 1 and right.delivery_count == left.delivery_count:
                return False
        if not found or any(run.first > run.last for run in found):
            return False
    return True


@st.composite
def run_maps(draw: st.DrawFn) -> RunMap:
    runs = RunMap()
    for place in draw(st.lists(st.sampled_from([A, B]), max_size=4)):
        first = draw(st.integers(0, 30))
        runs.add(place, [Run(first, first + draw(st.integers(0, 8)), draw(st.integers(1, 2)))])
    return runs


@given(run_maps(), run_maps())
def test_runs_are_sets_of_offsets(left: RunMap, right: RunMap) -> None:
    ours, others = counts_of(left), counts_of(right)
    together = left.copy()
    together.update(right)
    assert counts_of(together) == {**ours, **others}
    assert counts_of(left.minus(right)) == {key: count for key, count in ours.items() if key not in others}
    assert counts_of(left.within(right)) == {key: count for key, count in ours.items() if key in others}
    assert left.records == len(ours)
    assert counts_of(left) == ours
    assert all(is_in_order(found) for found in (left, together, left.minus(right), left.within(right)))


@given(run_maps(), st.one_of(st.none(), st.integers(1, 7)))
def test_a_split_has_everything_once(runs: RunMap, parts: int | None) -> None:
    pieces = split(runs, parts)
    found: list[tuple[Place, int]] = []
    for piece in pieces:
        assert piece
        found += counts_of(piece)
    assert sorted(found) == sorted(counts_of(runs))
    if parts is None:
        assert len(pieces) == len(list(runs.items()))
    else:
        assert len(pieces) <= parts
        sizes = [piece.records for piece in pieces]
        assert not sizes or max(sizes) == sizes[0]


@given(run_maps(), run_maps())
def test_an_offset_comes_back_from_json(runs: RunMap, unaccepted: RunMap) -> None:
    offset = ShareOffset(3, "session", 12345, runs, unaccepted)
    document = json.loads(json.dumps(offset.to_json()))
    assert ShareOffset.from_json(document) == offset
    assert json.dumps(ShareOffset.from_json(document).to_json()) == json.dumps(document)


def test_an_offset_is_bounded() -> None:
    many = RunMap({A: [Run(2 * index, 2 * index, 1) for index in range(UNACCEPTED_LIMIT + 5)]})
    kept = ShareOffset.from_json(ShareOffset(1, "s", 0, RunMap(), many).to_json()).unaccepted
    assert kept.number_of_runs == UNACCEPTED_LIMIT
    assert (A, 2 * (UNACCEPTED_LIMIT + 4)) in counts_of(kept)
    assert (A, 0) not in counts_of(kept)


@pytest.mark.parametrize("document", [{}, {"version": 2}, {"version": 1, "batch": 1}, {"orders": {"0": 7}}])
def test_an_offset_of_something_else_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UnknownOffset):
        ShareOffset.from_json(document)


def runs_of(first: int, last: int, count: int = 1) -> RunMap:
    return RunMap({A: [Run(first, last, count)]})


def test_a_batch_that_is_held_to_its_end_is_accepted() -> None:
    ledger = Ledger()
    assert not ledger.acquired(runs_of(0, 9))
    batch = ledger.begin()
    assert batch == runs_of(0, 9)
    assert ledger.finished(batch) == runs_of(0, 9)
    ledger.accepted(runs_of(0, 9))
    assert not ledger.held and not ledger.unaccepted


def test_what_is_not_held_is_never_to_be_accepted() -> None:
    ledger = Ledger()
    assert not ledger.finished(runs_of(0, 9)), "a batch of the checkpoint, acquired by a process that is gone"
    assert ledger.unaccepted == runs_of(0, 9)


def test_what_was_done_and_comes_again_is_accepted_and_not_delivered_again() -> None:
    ledger = Ledger()
    ledger.acquired(runs_of(0, 9))
    batch = ledger.begin()
    ledger.lost(runs_of(4, 6))
    assert ledger.finished(batch) == RunMap({A: [Run(0, 3, 1), Run(7, 9, 1)]})
    ledger.accepted(ledger.held.copy())
    assert ledger.unaccepted == runs_of(4, 6)
    again = RunMap({A: [Run(4, 6, 2), Run(10, 12, 1)]})
    assert ledger.acquired(again) == runs_of(4, 6, 2)
    assert ledger.begin() == runs_of(10, 12)
    ledger.accepted(runs_of(4, 6, 2))
    assert not ledger.unaccepted


def test_a_topic_that_was_created_anew_is_another() -> None:
    ledger = Ledger()
    ledger.finished(runs_of(0, 9))
    anew = RunMap({A._replace(topic_id="another"): [Run(0, 9, 1)]})
    assert not ledger.acquired(anew)
    assert ledger.begin() == anew


def test_what_is_beyond_the_end_is_held_back() -> None:
    ledger = Ledger()
    ledger.acquired(RunMap({A: [Run(0, 9, 1)], B: [Run(0, 4, 1)]}))
    assert ledger.hold_back({("a", 0): 7, ("a", 1): 5}) == [A]
    assert ledger.begin() == RunMap({A: [Run(0, 6, 1)], B: [Run(0, 4, 1)]})
    assert ledger.held.records == 15, "it stays ours until it is released"
    assert ledger.hold_back({}) == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=12), st.data())
def test_a_refusal_costs_only_what_is_not_held(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whole acquisitions (runs of the request) are lost: all others are confirmed."""
    runs, first = [], 0
    for length, gap in shapes:
        runs.append(Run(first, first + length - 1, 1))
        first += length + gap + 1
    lost = data.draw(st.lists(st.sampled_from(runs), unique=True))
    work = Acknowledging(RunMap({A: runs}))
    requests = 0
    while not work.is_done:
        requests += 1
        asked = work.next_request()[A]
        if any(run.first <= one.last and run.last >= one.first for run in asked for one in lost):
            work.refuse(A)
        else:
            work.confirm(A)
    assert counts_of(work.confirmed) == counts_of(RunMap({A: runs}).minus(RunMap({A: sorted(lost)})))
    assert counts_of(work.lost) == counts_of(RunMap({A: sorted(lost)}))
    assert requests <= 32 * len(runs)


def test_one_run_of_several_acquisitions_is_halved() -> None:
    work = Acknowledging(runs_of(0, 799))
    while not work.is_done:
        (run,) = work.next_request()[A]
        work.confirm(A) if run.last < 200 or run.first >= 300 else work.refuse(A)
    assert (A, 199) in counts_of(work.confirmed) and (A, 300) in counts_of(work.confirmed)
    assert counts_of(work.lost).keys() == {(A, offset) for offset in range(200, 300)}


def test_open_work_is_given_up_as_lost() -> None:
    work = Acknowledging(RunMap({A: [Run(0, 9, 1)], B: [Run(0, 4, 1)]}))
    work.confirm(A)
    work.give_up()
    assert work.is_done
    assert work.confirmed == runs_of(0, 9) and work.lost == RunMap({B: [Run(0, 4, 1)]})
