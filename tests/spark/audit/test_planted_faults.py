"""A recorded history has no fault; with one planted into it, the audit names the rule and exactly its offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace

import pytest

from kshare.audit.direct import audit_records
from kshare.audit.findings import Rule
from kshare_core.delivery_history import DeliveryEvent, EventType, HistoryRecord
from support.pipeline.told_history import ToldHistory, faults_of, split_by_place, unproven_of
from support.simulation.plan import draw_plan
from support.simulation.rules.delivery_history import HistoryRun

Expected = dict[str, list[int]]
CALM_SEED, SEED_WITH_FAULTS = 5, 1
UNPROVEN = {Rule.EVENTS_LOST, Rule.NOT_LOADED, Rule.UNSEEN, Rule.UNKNOWN}


def recorded(seed: int, *, calm: bool) -> list[HistoryRecord]:
    """The history of a simulated run: members accept, release, reject, die, and let locks run out."""
    logging.disable(logging.CRITICAL)
    try:
        plan = draw_plan(seed)
        run = HistoryRun(replace(plan, fault_count=0), faults=[]) if calm else HistoryRun(plan)
        outcome = run.run()
        assert not outcome.failed, outcome.report()
        return run.records
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def calm_history() -> list[HistoryRecord]:
    return recorded(CALM_SEED, calm=True)


@pytest.fixture(scope="module")
def faulty_history() -> list[HistoryRecord]:
    return recorded(SEED_WITH_FAULTS, calm=False)


@pytest.fixture
def histories(calm_history: list[HistoryRecord], faulty_history: list[HistoryRecord]) -> list[ToldHistory]:
    """Of all share-partitions; those of the calm run first."""
    return [*split_by_place(calm_history).values(), *split_by_place(faulty_history).values()]


def test_a_calm_history_is_sound_and_whole(calm_history: list[HistoryRecord]) -> None:
    limit = draw_plan(CALM_SEED).delivery_count_limit
    audits = audit_records(calm_history, lambda group: limit)
    assert len(audits) == 6
    for audit in audits:
        assert audit.findings == []
        assert audit.first_offset == 0
        assert sum(audit.offsets.values()) == audit.end_offset > 0
        assert set(audit.offsets) <= {"accepted", "rejected", "dead_lettered"} | {
            f"archived: {reason}"
            for reason in ("missing_in_log", "rejected", "delivery_count_limit", "below_log_start")
        }


def test_a_history_with_crashes_has_no_fault(faulty_history: list[HistoryRecord]) -> None:
    limit = draw_plan(SEED_WITH_FAULTS).delivery_count_limit
    incarnations = {(record.leader, record.incarnation) for record in faulty_history}
    assert len(incarnations) > 1
    for audit in audit_records(faulty_history, lambda group: limit):
        assert faults_of(audit) == {}
        assert sum(audit.offsets.values()) == audit.end_offset - audit.first_offset


# What is planted: each changes the history and returns the offsets that the audit must name, by rule.


def again(event: DeliveryEvent, /, **fields: object) -> DeliveryEvent:
    return replace(event, **fields)  # type: ignore[arg-type]


def offsets_of(event: DeliveryEvent) -> list[int]:
    assert event.first_offset is not None and event.last_offset is not None
    return list(range(event.first_offset, event.last_offset + 1))


def is_alone(event: DeliveryEvent) -> bool:
    return event.first_offset == event.last_offset


def acquired_like(event: DeliveryEvent) -> DeliveryEvent:
    assert event.delivery_count is not None
    return again(
        event,
        event=EventType.ACQUIRED,
        delivery_count=event.delivery_count + 1,
        member_id="planted",
        lock_deadline_ms=event.time_ms,
        reason=None,
    )


def delivered_after_accept(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    event = told.events[at]
    anew = acquired_like(event)
    told.put(at, anew, again(anew, event=EventType.ACCEPTED, lock_deadline_ms=None))
    return {"delivered_after_accept": offsets_of(event)}


def delivered_after_end(told: ToldHistory) -> Expected:
    at = told.find(EventType.ARCHIVED, lambda event: event.reason == "rejected")
    event = told.events[at]
    anew = acquired_like(event)
    told.put(at, anew, again(anew, event=EventType.ACCEPTED, lock_deadline_ms=None))
    return {"delivered_after_end": offsets_of(event)}


def delivered_again_below_the_start_offset(told: ToldHistory) -> Expected:
    moved = told.find(EventType.START_OFFSET_MOVED)
    start = told.events[moved].start_offset
    assert start is not None
    accepted = told.find(EventType.ACCEPTED, lambda event: (event.last_offset or 0) < start)
    anew = acquired_like(told.events[accepted])
    told.put(moved, anew, again(anew, event=EventType.ACCEPTED, lock_deadline_ms=None))
    return {"delivered_after_accept": offsets_of(told.events[accepted])}


def held_twice(told: ToldHistory) -> Expected:
    """A release that was never told, and yet the record is somebody else's."""
    at = told.find(EventType.RELEASED, lambda event: event.reason is None)
    event = told.events[at]
    again_at = told.find_after(at, EventType.ACQUIRED, lambda other: other.first_offset == event.first_offset)
    assert told.events[again_at].last_offset == event.last_offset
    told.take_out(at)
    return {"held_twice": offsets_of(event)}


def accepted_twice(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.put(at, told.events[at])
    return {"accepted_twice": offsets_of(told.events[at])}


def released_after_it_was_accepted(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.put(at, again(told.events[at], event=EventType.RELEASED))
    return {"ended_after_end": offsets_of(told.events[at])}


def archived_after_it_was_accepted(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.put(at, again(told.events[at], event=EventType.ARCHIVED, reason="delivery_count_limit"))
    return {"ended_after_end": offsets_of(told.events[at])}


def accepted_without_an_acquisition(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACQUIRED, lambda event: is_alone(event) and event.delivery_count == 1)
    event = told.take_out(at)
    return {"ended_unheld": offsets_of(event)}


def accepted_by_another(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.change(at, member_id="planted")
    return {"ended_by_another": offsets_of(told.events[at])}


def accepted_delivery(told: ToldHistory, delivery_count: int) -> tuple[int, int]:
    """The indexes of a single record's acquisition with this count, and of its accept, which came next."""
    events = told.events
    for at, event in enumerate(events):
        if event.event is not EventType.ACQUIRED or not is_alone(event) or event.delivery_count != delivery_count:
            continue
        (offset,) = offsets_of(event)
        for end in range(at + 1, len(events)):
            if events[end].first_offset is not None and offset in offsets_of(events[end]):
                if events[end].event is EventType.ACCEPTED and is_alone(events[end]):
                    return at, end
                break
    raise AssertionError(f"no single record was accepted at its delivery {delivery_count}")


def a_delivery_count_that_leaps(told: ToldHistory) -> Expected:
    at, end = accepted_delivery(told, 1)
    event = told.events[at]
    for index in (at, end):
        told.change(index, delivery_count=2)
    return {"delivery_count": offsets_of(event)}


def a_delivery_count_that_stays(told: ToldHistory) -> Expected:
    at, end = accepted_delivery(told, 2)
    event = told.events[at]
    for index in (at, end):
        told.change(index, delivery_count=1)
    return {"delivery_count": offsets_of(event)}


def accepted_with_another_count(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.change(at, delivery_count=7)
    return {"delivery_count": offsets_of(told.events[at])}


def archived_without_a_reason(told: ToldHistory) -> Expected:
    at = told.find(EventType.ARCHIVED)
    told.change(at, reason=None)
    return {"archived_without_reason": offsets_of(told.events[at])}


def two_dead_letters(told: ToldHistory) -> Expected:
    at = told.find(EventType.DEAD_LETTERED)
    told.put(at, told.events[at])
    return {"dead_lettered_twice": offsets_of(told.events[at])}


def a_dead_letter_of_an_accepted_record(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    letter = again(told.events[at], event=EventType.DEAD_LETTERED, reason="rejected", dead_letter_topic="dlq")
    told.put(at, letter)
    return {"dead_lettered_undue": offsets_of(letter)}


def skipped(told: ToldHistory) -> Expected:
    """The start offset passes a record that nobody accepted."""
    at = told.find(EventType.ACCEPTED)
    event = told.take_out(at)
    return {"skipped": offsets_of(event)}


def skipped_without_a_delivery(told: ToldHistory) -> Expected:
    at = told.find(EventType.ARCHIVED, lambda event: event.reason == "missing_in_log")
    return {"skipped": offsets_of(told.take_out(at))}


def a_start_offset_that_goes_back(told: ToldHistory) -> Expected:
    first = told.find(EventType.START_OFFSET_MOVED)
    second = told.find_after(first, EventType.START_OFFSET_MOVED, lambda event: True)
    start = told.events[second].start_offset
    assert start is not None
    told.put(second, again(told.events[second], start_offset=start - 2))
    return {"start_offset_back": [start - 2, start - 1]}


def an_end_that_is_forgotten(told: ToldHistory) -> Expected:
    """The state that is loaded gives out again what is below its start offset."""
    at = told.find(EventType.UNLOADED)
    accepted = [event for event in told.events[:at] if event.event is EventType.ACCEPTED][-1]
    start = accepted.first_offset
    assert start is not None
    moved = max(event.start_offset or 0 for event in told.events[:at])
    told.put(at, DeliveryEvent(EventType.LOADED, 0, start_offset=start, runs=()))
    by_log = [event for event in told.events[:at] if event.reason in ("missing_in_log", "below_log_start")]
    not_stored = {offset for event in by_log if event.first_offset is not None for offset in offsets_of(event)}
    end = max(event.last_offset or 0 for event in told.events[:at]) + 1
    return {
        "start_offset_back": list(range(start, moved)),
        "end_forgotten": [offset for offset in range(start, end) if offset not in not_stored],
    }


def a_count_that_is_forgotten(told: ToldHistory) -> Expected:
    at = told.find(
        EventType.LOADED, lambda event: any(run.state == "Available" and run.delivery_count for run in event.runs or ())
    )
    runs = list(told.events[at].runs or ())
    index = next(index for index, run in enumerate(runs) if run.state == "Available" and run.delivery_count)
    runs[index] = replace(runs[index], delivery_count=0)
    told.change(at, runs=tuple(runs))
    del told.records[at + 1 :]
    return {"count_forgotten": list(range(runs[index].first_offset, runs[index].last_offset + 1))}


def a_state_epoch_that_goes_back(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.change_record(at, state_epoch=told.records[at].state_epoch - 1)
    return {"state_epoch_back": [-1]}


def a_leader_epoch_that_goes_back(told: ToldHistory) -> Expected:
    last = len(told.records) - 1
    told.change_record(last, leader_epoch=told.records[last].leader_epoch - 1)
    return {"leader_epoch_back": [-1]}


def two_leaders_of_one_epoch(told: ToldHistory) -> Expected:
    last = len(told.records) - 1
    assert told.records[last].incarnation == told.records[0].incarnation
    told.change_record(last, leader=77)
    return {"two_leaders": [-1]}


def two_events_with_one_number(told: ToldHistory) -> Expected:
    at = told.find(EventType.ACCEPTED)
    told.records.insert(at + 1, replace(told.records[at], events=(again(told.events[at], time_ms=1),)))
    return {"sequence_reused": [-1]}


def an_event_without_offsets(told: ToldHistory) -> Expected:
    at = told.find(EventType.START_OFFSET_MOVED)
    told.put(at, DeliveryEvent(EventType.ACCEPTED, 0, delivery_count=1))
    return {"malformed": [-1]}


PLANTS: list[Callable[[ToldHistory], Expected]] = [
    delivered_after_accept,
    delivered_after_end,
    delivered_again_below_the_start_offset,
    held_twice,
    accepted_twice,
    released_after_it_was_accepted,
    archived_after_it_was_accepted,
    accepted_without_an_acquisition,
    accepted_by_another,
    a_delivery_count_that_leaps,
    a_delivery_count_that_stays,
    accepted_with_another_count,
    archived_without_a_reason,
    two_dead_letters,
    a_dead_letter_of_an_accepted_record,
    skipped,
    skipped_without_a_delivery,
    a_start_offset_that_goes_back,
    an_end_that_is_forgotten,
    a_count_that_is_forgotten,
    a_state_epoch_that_goes_back,
    a_leader_epoch_that_goes_back,
    two_leaders_of_one_epoch,
    two_events_with_one_number,
    an_event_without_offsets,
]


def planted(histories: list[ToldHistory], plant: Callable[[ToldHistory], Expected]) -> tuple[ToldHistory, Expected]:
    """The first history into which the fault can be planted, with the fault in it."""
    for told in histories:
        changed = copy(told)
        changed.records = list(told.records)
        try:
            return changed, plant(changed)
        except AssertionError:
            continue
    raise AssertionError("no recorded history has what this fault needs")


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found_with_its_offsets(
    histories: list[ToldHistory], plant: Callable[[ToldHistory], Expected]
) -> None:
    told, expected = planted(histories, plant)
    audit = told.audit()
    assert faults_of(audit) == expected
    assert all(finding.events for finding in audit.findings)


def test_a_delivery_beyond_the_limit_is_found(histories: list[ToldHistory]) -> None:
    told = next(told for told in histories if any(event.delivery_count == 3 for event in told.events))
    over = [
        offset
        for event in told.events
        if event.event is EventType.ACQUIRED and (event.delivery_count or 0) > 2
        for offset in offsets_of(event)
    ]
    assert faults_of(told.audit(delivery_count_limit=2)) == {"delivery_count_limit": sorted(over)}


def test_each_rule_is_planted(histories: list[ToldHistory]) -> None:
    found = {rule for plant in PLANTS for rule in planted(histories, plant)[1]}
    assert found == set(Rule) - UNPROVEN - {Rule.DELIVERY_COUNT_LIMIT}


def test_a_lost_event_is_no_fault_but_unproven(histories: list[ToldHistory]) -> None:
    told = copy(histories[0])
    told.records = list(told.records)
    at = told.find(EventType.ACCEPTED)
    event = told.lose(at)
    audit = told.audit()
    assert faults_of(audit) == {}
    unproven = unproven_of(audit)
    assert set(unproven) == {"events_lost", "unseen"}
    assert unproven["unseen"] == offsets_of(event)
    assert set(offsets_of(event)) <= set(unproven["events_lost"])


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
