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

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
OWNER, OTHER = Owner("member"), Owner("other")
LIMITS = FetchLimits(
    owner=OWNER, max_records=10, batch_size=10, lock_duration_ms=1000, max_record_locks=100, delivery_count_limit=5
)
OFFSET = 11
"""The record under test; 10 before it stays Available, so that the start offset does not pass it."""

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
    (ACQUIRED, Event.ACCEPT): RecordState.ACKNOWLEDGED,
    (ACQUIRED, Event.RELEASE): AVAILABLE,
    (ACQUIRED, Event.REJECT): RecordState.ARCHIVED,
    (ACQUIRED, Event.GAP): RecordState.ARCHIVED,
    (ACQUIRED, Event.RENEW): ACQUIRED,
    (ACQUIRED, Event.SESSION_END): AVAILABLE,
    (ACQUIRED, Event.LOCK_TIMEOUT): AVAILABLE,
    (ACQUIRED, Event.ACQUISITION_UNDONE): AVAILABLE,
}
"""All that may happen; every other cell leaves the record as it is."""


def machine_with(state: RecordState, count: int) -> SharePartition:
    stored = AVAILABLE if state is ACQUIRED else state
    stored_count = count - 1 if state is ACQUIRED else count
    batches = [StateBatch(10, 10, AVAILABLE, 0), StateBatch(OFFSET, OFFSET, stored, stored_count)]
    machine = SharePartition(start_offset=10, state_batches=batches)
    if state is ACQUIRED:
        machine.acquire(LIMITS, 0, OFFSET, [(OFFSET, OFFSET)], OFFSET + 1)
    return machine


def happen(machine: SharePartition, event: Event) -> None:
    """The event, with its write stored where it has one."""
    if event is Event.ACQUIRE:
        machine.acquire(LIMITS, 0, OFFSET, [(OFFSET, OFFSET)], OFFSET + 1)
    elif event is Event.SESSION_END:
        machine.release(OWNER.__eq__, 5)
    elif event is Event.LOCK_TIMEOUT:
        machine.expire(5000, 5)
    elif event is Event.ACQUISITION_UNDONE:
        machine.undo_acquire(OWNER, [AcquiredRecords(OFFSET, OFFSET, 1)])
    elif event is Event.MISSING_IN_LOG:
        nothing = FetchLimits(
            owner=OTHER, max_records=1, batch_size=1, lock_duration_ms=1, max_record_locks=1, delivery_count_limit=5
        )
        machine.acquire(nothing, 0, OFFSET, [], OFFSET + 1)
    else:
        batch = AcknowledgementBatch(OFFSET, OFFSET, bytes([ACKNOWLEDGEMENTS[event]]))
        machine.acknowledge(OWNER, 1, [batch], delivery_count_limit=5, lock_duration_ms=1000, renew_allowed=True)
    write = machine.next_write()
    if write is not None:
        machine.write_succeeded(write.write_id)


def state_at(machine: SharePartition, offset: int) -> tuple[RecordState, int]:
    for run in machine.runs():
        if run.first_offset <= offset <= run.last_offset:
            assert run.write_id == NO_WRITE
            return run.state, run.delivery_count
    raise AssertionError(f"{offset} is not in flight")


@pytest.mark.parametrize(("state", "event"), list(product(RecordState, Event)))
def test_cell(state: RecordState, event: Event) -> None:
    after = EXPECTED.get((state, event))
    assert TRANSITIONS[state, event] is after
    machine = machine_with(state, 2)
    if after is None and event in ACKNOWLEDGEMENTS:
        with pytest.raises(KafkaError) as refused:
            happen(machine, event)
        assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    else:
        happen(machine, event)
    count = {Event.ACQUIRE: 3, Event.ACQUISITION_UNDONE: 1}.get(event, 2) if after is not None else 2
    assert state_at(machine, OFFSET) == (state if after is None else after, count)


def test_the_table_has_every_cell() -> None:
    assert set(TRANSITIONS) == set(product(RecordState, Event))


@pytest.mark.parametrize("event", [Event.RELEASE, Event.SESSION_END, Event.LOCK_TIMEOUT])
@pytest.mark.parametrize(("count", "after"), [(4, AVAILABLE), (5, RecordState.ARCHIVED), (6, RecordState.ARCHIVED)])
def test_the_delivery_count_limit_archives(event: Event, count: int, after: RecordState) -> None:
    assert next_state(ACQUIRED, event, count, 5) is after
    machine = machine_with(ACQUIRED, count)
    happen(machine, event)
    assert state_at(machine, OFFSET) == (after, count)
