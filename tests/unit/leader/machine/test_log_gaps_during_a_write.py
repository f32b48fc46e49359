"""Offsets that the log does not have and that are found while a write is in flight: the start offset passes them too.

A transaction's marker is such an offset. It often comes behind the last records of a log, while their acknowledgement
is being stored; if its passing were never stored, the group's lag would stay above zero.
"""

from __future__ import annotations

import pytest

from kshare_core.states import RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch
from support.leader.share.group_limits import group_limits

OWNER = Owner("m1", 1, "incarnation")
LIMITS = FetchLimits(
    owner=OWNER,
    max_records=100,
    batch_size=100,
    group=group_limits(lock_duration_ms=1000, max_record_locks=100, delivery_count_limit=5),
)
ACCEPT = b"\x01"


def acknowledge(machine: SharePartition, first: int, last: int) -> None:
    batches = [AcknowledgementBatch(first, last, ACCEPT)]
    machine.acknowledge(OWNER, 0, batches, group_limits(lock_duration_ms=1000, delivery_count_limit=5))


def test_a_marker_that_comes_while_the_last_records_are_stored() -> None:
    machine = SharePartition(start_offset=0)
    machine.acquire(LIMITS, 0, 0, [(0, 9)], 10)
    acknowledge(machine, 0, 9)
    write = machine.next_write()
    assert write is not None
    assert write.start_offset == 10
    machine.acquire(LIMITS, 0, 10, [], 11)
    machine.write_succeeded(write.write_id)
    assert machine.start_offset == 11
    following = machine.next_write()
    assert following is not None
    assert (following.start_offset, following.state_batches) == (11, [])
    machine.write_succeeded(following.write_id)
    assert machine.next_write() is None


@pytest.mark.parametrize("marker", [False, True])
def test_a_write_of_single_records_is_followed_by_another_only_where_something_is_missing(marker: bool) -> None:
    machine = SharePartition(start_offset=0)
    machine.acquire(LIMITS, 0, 0, [(0, 9)], 10)
    acknowledge(machine, 5, 9)
    first = machine.next_write()
    assert first is not None
    machine.write_succeeded(first.write_id)
    acknowledge(machine, 0, 4)
    second = machine.next_write()
    assert second is not None
    if marker:
        machine.acquire(LIMITS, 0, 10, [], 11)
    machine.write_succeeded(second.write_id)
    following = machine.next_write()
    assert (None if following is None else following.start_offset) == (11 if marker else None)


def test_a_change_that_moves_the_start_over_missing_offsets_counts_them_and_needs_no_other_write() -> None:
    """The stored end lies behind them, so they stay stored as Available; a restart finds them missing again."""
    stored = StateBatch(0, 5, RecordState.AVAILABLE, 1)
    machine = SharePartition(start_offset=0, state_batches=[stored])
    machine.acquire(LIMITS, 0, 0, [(3, 3)], 5)
    assert machine.start_offset == 3
    acknowledge(machine, 3, 3)
    write = machine.next_write()
    assert write is not None
    assert (write.start_offset, write.state_batches) == (3, [StateBatch(3, 3, RecordState.ACKNOWLEDGED, 2)])
    assert write.delivery_complete_count == 2, "offset 4 as well, so that the lag is 1"
    machine.write_succeeded(write.write_id)
    assert (machine.start_offset, machine.durable_start_offset, machine.next_write()) == (5, 5, None)
    again = SharePartition(
        start_offset=3, state_batches=[*write.state_batches, StateBatch(4, 5, RecordState.AVAILABLE, 1)]
    )
    assert again.start_offset == 4
    again.acquire(LIMITS, 0, 4, [(5, 5)], 6)
    assert again.start_offset == 5
