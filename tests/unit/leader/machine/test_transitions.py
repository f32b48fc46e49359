"""Every cell of the transition table, walked through the machine itself."""

from __future__ import annotations

from itertools import product

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.machine.transitions import TRANSITIONS, Event, next_state
from support.leader.share.group_limits import group_limits

AVAILABLE, ACQUIRED, ARCHIVING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVING
OWNER, OTHER = Owner("member"), Owner("other")
OFFSET = 11
"""The record under test; 10 before it stays with another owner, so that the start offset does not pass it."""

ACKNOWLEDGEMENTS = {
    Event.GAP: AcknowledgeType.GAP,
    Event.ACCEPT: AcknowledgeType.ACCEPT,
    Event.RELEASE: AcknowledgeType.RELEASE,
    Event.REJECT: AcknowledgeType.REJECT,
    Event.RENEW: AcknowledgeType.RENEW,
}

EXPECTED = {
    (AVAILABLE, Event.ACQUIRE): ACQUIRED,
    (AVAILABLE, Event.MISSING_IN_LOG): RecordState.ARCHIVED,
    (AVAILABLE, Event.BELOW_LOG_START): RecordState.ARCHIVED,
    (ACQUIRED, Event.ACCEPT): RecordState.ACKNOWLEDGED,
    (ACQUIRED, Event.RELEASE): AVAILABLE,
    (ACQUIRED, Event.REJECT): RecordState.ARCHIVED,
    (ACQUIRED, Event.GAP): RecordState.ARCHIVED,
    (ACQUIRED, Event.RENEW): ACQUIRED,
    (ACQUIRED, Event.SESSION_END): AVAILABLE,
    (ACQUIRED, Event.LOCK_TIMEOUT): AVAILABLE,
    (ACQUIRED, Event.ACQUISITION_UNDONE): AVAILABLE,
    (ACQUIRED, Event.BELOW_LOG_START): RecordState.ARCHIVED,
    (ARCHIVING, Event.DEAD_LETTERED): RecordState.ARCHIVED,
}
"""All that may happen; every other cell leaves the record as it is."""


def take(machine: SharePartition, owner: Owner, offset: int) -> None:
    limits = FetchLimits(
        owner=owner,
        max_records=10,
        batch_size=10,
        group=group_limits(
            lock_duration_ms=1000 if owner is OWNER else 1_000_000, max_record_locks=100, delivery_count_limit=5
        ),
    )
    machine.acquire(limits, 0, offset, [(offset, offset)], offset + 1)


def machine_with(state: RecordState, count: int) -> SharePartition:
    stored = AVAILABLE if state is ACQUIRED else state
    stored_count = count - 1 if state is ACQUIRED else count
    batches = [StateBatch(10, 10, AVAILABLE, 0), StateBatch(OFFSET, OFFSET, stored, stored_count)]
    machine = SharePartition(start_offset=10, state_batches=batches)
    take(machine, OTHER, 10)
    if state is ACQUIRED:
        take(machine, OWNER, OFFSET)
    return machine


def happen(machine: SharePartition, event: Event, dead_letters: bool = False) -> None:
    """The event, with its write stored where it has one."""
    if event is Event.ACQUIRE:
        take(machine, OWNER, OFFSET)
    elif event is Event.SESSION_END:
        machine.release(OWNER.__eq__, group_limits(delivery_count_limit=5, dead_letters=dead_letters))
    elif event is Event.LOCK_TIMEOUT:
        machine.expire(5000, group_limits(delivery_count_limit=5, dead_letters=dead_letters))
    elif event is Event.ACQUISITION_UNDONE:
        machine.undo_acquire(OWNER, [AcquiredRecords(OFFSET, OFFSET, 2)])
    elif event is Event.MISSING_IN_LOG:
        nothing = FetchLimits(
            owner=OTHER,
            max_records=1,
            batch_size=1,
            group=group_limits(lock_duration_ms=1, max_record_locks=1, delivery_count_limit=5),
        )
        machine.acquire(nothing, 0, OFFSET, [], OFFSET + 1)
    elif event is Event.BELOW_LOG_START:
        machine.remove_below(OFFSET + 1)
    elif event is Event.DEAD_LETTERED:
        machine.dead_letters_done(OFFSET, OFFSET)
    else:
        batch = AcknowledgementBatch(OFFSET, OFFSET, bytes([ACKNOWLEDGEMENTS[event]]))
        machine.acknowledge(
            OWNER,
            1,
            [batch],
            group_limits(delivery_count_limit=5, lock_duration_ms=1000, dead_letters=dead_letters),
            renew_allowed=True,
        )
    write = machine.next_write()
    if write is not None:
        machine.write_succeeded(write.write_id)


def state_at(machine: SharePartition, offset: int) -> tuple[RecordState, int]:
    for run in machine.runs():
        if run.first_offset <= offset <= run.last_offset:
            assert run.write_id == NO_WRITE
            return run.state, run.delivery_count
    raise AssertionError(f"{offset} is not in flight")


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize(("state", "event"), list(product(RecordState, Event)))
def test_cell(state: RecordState, event: Event, dead_letters: bool) -> None:
    after = EXPECTED.get((state, event))
    assert TRANSITIONS[state, event] is after
    if dead_letters and (state, event) == (ACQUIRED, Event.REJECT):
        after = ARCHIVING
    machine = machine_with(state, 2)
    if after is None and event in ACKNOWLEDGEMENTS:
        with pytest.raises(KafkaError) as refused:
            happen(machine, event, dead_letters)
        assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    else:
        happen(machine, event, dead_letters)
    if event is Event.BELOW_LOG_START:
        if state is ARCHIVING:
            assert machine.start_offset == OFFSET and state_at(machine, OFFSET) == (ARCHIVING, 2)
        else:
            assert machine.start_offset == OFFSET + 1 and machine.runs() == []
        return
    count = {Event.ACQUIRE: 3, Event.ACQUISITION_UNDONE: 1}.get(event, 2) if after is not None else 2
    assert state_at(machine, OFFSET) == (state if after is None else after, count)


def test_the_table_has_every_cell() -> None:
    assert set(TRANSITIONS) == set(product(RecordState, Event))


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("event", [Event.RELEASE, Event.SESSION_END, Event.LOCK_TIMEOUT])
@pytest.mark.parametrize(("count", "is_last"), [(4, False), (5, True), (6, True)])
def test_the_delivery_count_limit_archives(event: Event, count: int, is_last: bool, dead_letters: bool) -> None:
    given_up = ARCHIVING if dead_letters else RecordState.ARCHIVED
    after = given_up if is_last else AVAILABLE
    assert next_state(ACQUIRED, event, count, 5, dead_letters) is after
    machine = machine_with(ACQUIRED, count)
    happen(machine, event, dead_letters)
    assert state_at(machine, OFFSET) == (after, count)


@pytest.mark.parametrize("event", [Event.GAP, Event.MISSING_IN_LOG, Event.BELOW_LOG_START])
def test_offsets_that_the_log_does_not_have_are_no_dead_letters(event: Event) -> None:
    state = ACQUIRED if event is Event.GAP else AVAILABLE
    assert next_state(state, event, 9, 5, dead_letters=True) is RecordState.ARCHIVED
