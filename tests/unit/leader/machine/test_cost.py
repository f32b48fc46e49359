"""The cost of an operation depends on the runs that it touches, not on the number of runs in flight.

Cost is the number of lines of the machine that are executed, so that no clock is needed and the result is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from kshare_core.states import RecordState
from kshare_leader.machine import share_partition
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch
from support.leader.share.group_limits import group_limits

MACHINE_FOLDER = share_partition.__file__.rpartition("/")[0]
EVEN, ODD, SINGLE = Owner("even"), Owner("odd"), Owner("single")
NO_LIMIT = 1 << 40
FEW, MANY = 101, 9_001
LIMIT = 1 << 30


def lines_executed(call: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        if not frame.f_code.co_filename.startswith(MACHINE_FOLDER):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def take(machine: SharePartition, owner: Owner, offset: int, now_ms: int = 0) -> None:
    limits = FetchLimits(
        owner=owner,
        max_records=1,
        batch_size=1,
        group=group_limits(lock_duration_ms=1000, max_record_locks=NO_LIMIT, delivery_count_limit=LIMIT),
    )
    machine.acquire(limits, now_ms, offset, [(offset, offset)], offset + 1)


def acknowledge(machine: SharePartition, owner: Owner, offsets: list[int], letter: int, now_ms: int = 1) -> None:
    batches = [AcknowledgementBatch(offset, offset, bytes([letter])) for offset in offsets]
    machine.acknowledge(
        owner,
        now_ms,
        batches,
        group_limits(delivery_count_limit=LIMIT, lock_duration_ms=1000, dead_letters=True),
        renew_allowed=True,
    )


def store(machine: SharePartition) -> None:
    write = machine.next_write()
    assert write is not None
    machine.write_succeeded(write.write_id)


def held(count: int) -> SharePartition:
    """Runs of one record, held by two members in turn; the one in the middle by a third."""
    machine = SharePartition(start_offset=0)
    for offset in range(count):
        take(machine, SINGLE if offset == count // 2 else (EVEN, ODD)[offset % 2], offset, now_ms=offset)
    assert len(machine.runs()) == count
    return machine


def stored(count: int, state: RecordState) -> SharePartition:
    """Runs of one record in turn in `state` and held; all are stored already."""
    batches = [
        StateBatch(offset, offset, state if offset % 2 else RecordState.AVAILABLE, 1 + offset % 2)
        for offset in range(count)
    ]
    machine = SharePartition(start_offset=0, state_batches=batches)
    for offset in range(0, count, 2):
        take(machine, EVEN, offset)
    return machine


def accept_in_the_middle(machine: SharePartition, count: int) -> None:
    acknowledge(machine, SINGLE, [count // 2], 1, now_ms=0)
    store(machine)


def accept_at_both_ends(machine: SharePartition, count: int) -> None:
    acknowledge(machine, EVEN, [0, count - 1], 1, now_ms=0)
    store(machine)


def fail_a_write_of_both_ends(machine: SharePartition, count: int) -> None:
    acknowledge(machine, EVEN, [0, count - 1], 1, now_ms=0)
    write = machine.next_write()
    assert write is not None
    machine.write_failed(write.write_id)


def release_and_take_again_the_last(machine: SharePartition, count: int) -> None:
    acknowledge(machine, EVEN, [count - 1], 2, now_ms=0)
    store(machine)
    assert machine.next_fetch(0, group_limits(max_record_locks=NO_LIMIT)) == (count - 1, False)
    take(machine, EVEN, count - 1)


def end_a_session(machine: SharePartition, count: int) -> None:
    machine.release(SINGLE.__eq__, group_limits(delivery_count_limit=5))
    store(machine)


def end_a_session_that_holds_nothing(machine: SharePartition, count: int) -> None:
    machine.release(Owner("other").__eq__, group_limits(delivery_count_limit=5))


def let_a_lock_run_out(machine: SharePartition, count: int) -> None:
    machine.expire(1000, group_limits(delivery_count_limit=5))
    store(machine)


def renew(machine: SharePartition, count: int) -> None:
    acknowledge(machine, SINGLE, [count // 2], 4, now_ms=0)


def reject_and_dead_letter(machine: SharePartition, count: int) -> None:
    acknowledge(machine, SINGLE, [count // 2], 3, now_ms=0)
    store(machine)
    assert len(machine.archiving(10, group_limits(delivery_count_limit=5))) == 1
    machine.dead_letters_done(count // 2, count // 2)
    store(machine)


def remove_the_first(machine: SharePartition, count: int) -> None:
    machine.remove_below(1)
    store(machine)


def take_a_new_one(machine: SharePartition, count: int) -> None:
    take(machine, ODD, count)
    acknowledge(machine, ODD, [count], 1)


@pytest.mark.parametrize(
    "operation",
    [
        accept_in_the_middle,
        accept_at_both_ends,
        fail_a_write_of_both_ends,
        release_and_take_again_the_last,
        end_a_session,
        end_a_session_that_holds_nothing,
        let_a_lock_run_out,
        renew,
        reject_and_dead_letter,
        remove_the_first,
        take_a_new_one,
    ],
)
def test_the_cost_does_not_grow_with_the_runs_in_flight(operation: Callable[[SharePartition, int], None]) -> None:
    costs = []
    for count in (FEW, MANY):
        machine = held(count)
        if operation is not let_a_lock_run_out:  # what is not stored yet is, once: later writes need not name it
            acknowledge(machine, (EVEN, ODD)[(count - 1) % 2], [count - 1], 2, now_ms=count - 1)
            store(machine)
            take(machine, EVEN, count - 1, now_ms=count)
        costs.append(lines_executed(partial(operation, machine, count)))
    few, many = costs
    assert 0 < many <= 1.3 * few + 10, f"{few} lines with {FEW} runs, {many} with {MANY}"


def test_listing_dead_letters_looks_at_archiving_runs_only() -> None:
    costs = []
    for count in (FEW, MANY):
        archiving = partial(stored(count, RecordState.ARCHIVING).archiving, 5, group_limits())
        assert len(archiving()) == 5
        costs.append(lines_executed(archiving))
    assert 0 < costs[1] <= 1.3 * costs[0] + 10


def test_finding_redelivery_passes_over_what_is_done() -> None:
    costs = []
    for count in (FEW, MANY):
        machine = stored(count, RecordState.ACKNOWLEDGED)
        acknowledge(machine, EVEN, [count - 1], 2)
        store(machine)
        next_fetch = partial(machine.next_fetch, 0, group_limits(max_record_locks=NO_LIMIT))
        assert next_fetch() == (count - 1, False), "marks of what was taken since go once"
        costs.append(lines_executed(next_fetch))
    assert 0 < costs[1] <= 1.3 * costs[0] + 10


def test_kafka_21106_lock_entries_do_not_pile_up() -> None:
    """A member that takes and releases for ever, while another holds one record."""
    machine = SharePartition(start_offset=0)
    take(machine, ODD, 0)
    for turn in range(2000):
        take(machine, EVEN, 1, now_ms=turn)
        acknowledge(machine, EVEN, [1], 2 if turn % 3 else 4, now_ms=turn)
        if machine.wants_write:
            store(machine)
        machine.release(EVEN.__eq__, group_limits(delivery_count_limit=LIMIT))
        if machine.wants_write:
            store(machine)
    assert len(machine.runs()) == 2
    assert len(machine._locks) < 100
    assert len(machine._window.runs._marks[RecordState.AVAILABLE]) <= 2
    acknowledge(machine, ODD, [0], 1)
    store(machine)
    assert len(machine._locks) == 0
