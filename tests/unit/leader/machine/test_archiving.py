"""Records on their way to the dead-letter topic (KIP-1191): what they block, when they are listed, how they end."""

from __future__ import annotations

import pytest

from kshare_core.errors import KafkaError
from kshare_core.states import RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import ArchivingRun, SharePartition
from kshare_leader.machine.state_write import StateBatch, StateWrite
from kshare_leader.machine.transitions import ArchivingReason
from support.leader.share.group_limits import group_limits
from support.leader.share.script import fetch

OWNER, OTHER = Owner("member"), Owner("other")
LOG = [(0, 4), (5, 9), (10, 14)]
REJECTED, EXCEEDED = ArchivingReason.REJECTED, ArchivingReason.DELIVERY_COUNT_EXCEEDED
ARCHIVING = RecordState.ARCHIVING


def take(machine: SharePartition, max_records: int = 15) -> list[tuple[int, int, int]]:
    limits = FetchLimits(
        owner=OWNER,
        max_records=max_records,
        batch_size=100,
        group=group_limits(lock_duration_ms=1000, max_record_locks=100, delivery_count_limit=2),
    )
    return [(first, last, count) for first, last, count in fetch(machine, LOG, limits, 0)]


def acknowledge(machine: SharePartition, first: int, last: int, types: bytes) -> int:
    batch = AcknowledgementBatch(first, last, types)
    return machine.acknowledge(
        OWNER, 1, [batch], group_limits(delivery_count_limit=2, lock_duration_ms=1000, dead_letters=True)
    )


def store(machine: SharePartition) -> StateWrite:
    write = machine.next_write()
    assert write is not None
    machine.write_succeeded(write.write_id)
    return write


def listed(machine: SharePartition, limit: int = 10) -> list[ArchivingRun]:
    return machine.archiving(limit, group_limits(delivery_count_limit=2))


def runs(machine: SharePartition) -> list[tuple[int, int, str]]:
    return [(run.first_offset, run.last_offset, run.state.name) for run in machine.runs()]


def rejected() -> SharePartition:
    """0-9 are Archiving, 10-14 Acquired."""
    machine = SharePartition(start_offset=0)
    take(machine)
    acknowledge(machine, 0, 9, b"\x03")
    store(machine)
    return machine


def test_rejected_records_are_listed_once_they_are_stored() -> None:
    machine = SharePartition(start_offset=0)
    take(machine)
    acknowledge(machine, 0, 9, b"\x03")
    assert listed(machine) == []
    write = machine.next_write()
    assert write is not None and listed(machine) == []
    assert write.state_batches == [StateBatch(0, 9, ARCHIVING, 1)]
    assert (write.start_offset, write.delivery_complete_count) == (-1, 0)
    machine.write_succeeded(write.write_id)
    assert listed(machine) == [ArchivingRun(0, 9, 1, REJECTED)]
    assert (machine.archiving_count, machine.acquired_count, machine.delivery_complete_count) == (10, 5, 0)


def test_a_failed_write_leaves_nothing_to_dead_letter() -> None:
    machine = SharePartition(start_offset=0)
    take(machine)
    acknowledge(machine, 0, 9, b"\x03")
    write = machine.next_write()
    assert write is not None
    machine.write_failed(write.write_id)
    assert listed(machine) == [] and runs(machine) == [(0, 14, "ACQUIRED")]


@pytest.mark.parametrize("how", ["release", "session end", "lock timeout"])
def test_the_delivery_count_limit_leads_to_the_dead_letters(how: str) -> None:
    machine = SharePartition(start_offset=0, state_batches=[StateBatch(0, 4, RecordState.AVAILABLE, 1)])
    assert take(machine, 5) == [(0, 4, 2)]
    if how == "release":
        acknowledge(machine, 0, 4, b"\x02")
    elif how == "session end":
        machine.release(OWNER.__eq__, group_limits(delivery_count_limit=2, dead_letters=True))
    else:
        machine.expire(1000, group_limits(delivery_count_limit=2, dead_letters=True))
    store(machine)
    assert listed(machine) == [ArchivingRun(0, 4, 2, EXCEEDED)]


def test_archiving_records_hold_the_start_offset_and_have_no_owner() -> None:
    machine = rejected()
    acknowledge(machine, 10, 14, b"\x01")
    store(machine)
    assert runs(machine) == [(0, 9, "ARCHIVING"), (10, 14, "ACKNOWLEDGED")]
    assert machine.start_offset == 0 and take(machine) == []
    assert all(run.owner is None and run.lock_deadline_ms == 0 for run in machine.runs())
    with pytest.raises(KafkaError, match="INVALID_RECORD_STATE"):
        acknowledge(machine, 0, 0, b"\x01")
    assert (
        machine.expire(5000, group_limits(delivery_count_limit=2, dead_letters=True)) == NO_WRITE
        and machine.release(OWNER.__eq__, group_limits(delivery_count_limit=2, dead_letters=True)) == NO_WRITE
    )
    assert not machine.wants_write


def test_finished_dead_letters_let_the_start_offset_go_on() -> None:
    machine = rejected()
    assert machine.dead_letters_done(0, 4) != NO_WRITE
    assert listed(machine) == [ArchivingRun(5, 9, 1, REJECTED)], "what is pending is not listed again"
    write = store(machine)
    assert (write.start_offset, write.state_batches) == (-1, [StateBatch(0, 4, RecordState.ARCHIVED, 1)])
    assert machine.start_offset == 5
    machine.dead_letters_done(5, 9)
    write = store(machine)
    assert (write.start_offset, write.state_batches) == (10, [])
    assert machine.start_offset == 10 and listed(machine) == [] and machine.archiving_count == 0


def test_a_part_in_the_middle_may_be_done_first() -> None:
    machine = rejected()
    machine.dead_letters_done(3, 6)
    store(machine)
    assert runs(machine) == [(0, 2, "ARCHIVING"), (3, 6, "ARCHIVED"), (7, 9, "ARCHIVING"), (10, 14, "ACQUIRED")]
    assert listed(machine) == [ArchivingRun(0, 2, 1, REJECTED), ArchivingRun(7, 9, 1, REJECTED)]
    assert listed(machine, 1) == [ArchivingRun(0, 2, 1, REJECTED)]
    assert listed(machine, 0) == []


def test_a_failed_write_of_what_was_done_lists_it_again() -> None:
    machine = rejected()
    machine.dead_letters_done(0, 9)
    write = machine.next_write()
    assert write is not None
    deadline = machine.next_deadline_ms
    machine.write_failed(write.write_id)
    assert listed(machine) == [ArchivingRun(0, 9, 1, REJECTED)]
    assert machine.next_deadline_ms == deadline, "an Archiving record has no lock"


def test_dead_letters_done_of_what_is_not_archiving_changes_nothing() -> None:
    machine = rejected()
    assert machine.dead_letters_done(10, 14) == NO_WRITE
    assert machine.dead_letters_done(100, 200) == NO_WRITE
    assert machine.dead_letters_done(0, 9) != NO_WRITE
    assert machine.dead_letters_done(0, 20) == NO_WRITE, "it is pending already"
    store(machine)
    assert machine.dead_letters_done(0, 9) == NO_WRITE
    assert runs(machine) == [(10, 14, "ACQUIRED")]


def test_reasons_keep_runs_apart() -> None:
    machine = SharePartition(start_offset=0, state_batches=[StateBatch(0, 4, RecordState.AVAILABLE, 1)])
    take(machine, 5)
    acknowledge(machine, 0, 4, b"\x03\x03\x02\x02\x02")
    store(machine)
    assert listed(machine) == [ArchivingRun(0, 1, 2, REJECTED), ArchivingRun(2, 4, 2, EXCEEDED)]


def test_kafka_20672_archiving_records_are_listed_right_after_a_restart() -> None:
    batches = [StateBatch(3, 4, ARCHIVING, 1), StateBatch(5, 9, ARCHIVING, 2), StateBatch(10, 10, ARCHIVING, 3)]
    machine = SharePartition(start_offset=3, state_batches=batches)
    assert listed(machine) == [
        ArchivingRun(3, 4, 1, REJECTED),
        ArchivingRun(5, 9, 2, EXCEEDED),
        ArchivingRun(10, 10, 3, EXCEEDED),
    ]
    assert machine.start_offset == 3 and machine.archiving_count == 8
    assert take(machine, 1) == [(11, 14, 1)]
    machine.dead_letters_done(3, 10)
    store(machine)
    assert machine.start_offset == 11


def test_a_log_that_begins_later_does_not_end_archiving() -> None:
    machine = rejected()
    machine.remove_below(15)
    assert machine.start_offset == 0 and listed(machine) == [ArchivingRun(0, 9, 1, REJECTED)]
    machine.dead_letters_done(0, 9)
    store(machine)
    assert machine.start_offset == 15


def test_a_log_that_begins_later_while_what_is_done_is_written() -> None:
    machine = rejected()
    machine.dead_letters_done(0, 2)
    write = machine.next_write()
    assert write is not None
    machine.remove_below(5)
    machine.write_succeeded(write.write_id)
    assert machine.start_offset == 3 and listed(machine) == [ArchivingRun(3, 9, 1, REJECTED)]


def test_a_log_that_begins_later_while_a_rejection_is_written_leaves_it_its_dead_letter() -> None:
    machine = SharePartition(start_offset=0)
    take(machine, 10)
    acknowledge(machine, 0, 4, b"\x03")
    write = machine.next_write()
    assert write is not None
    machine.remove_below(8)
    assert (machine.start_offset, listed(machine)) == (0, [])
    machine.write_succeeded(write.write_id)
    assert listed(machine) == [ArchivingRun(0, 4, 1, REJECTED)]
    machine.dead_letters_done(0, 4)
    store(machine)
    assert machine.start_offset == 8


def test_a_log_that_begins_later_while_a_rejection_is_written_that_then_fails() -> None:
    machine = SharePartition(start_offset=0)
    take(machine, 10)
    acknowledge(machine, 0, 4, b"\x03")
    write = machine.next_write()
    assert write is not None
    machine.remove_below(8)
    machine.write_failed(write.write_id)
    machine.remove_below(8)
    assert (machine.start_offset, listed(machine)) == (8, []), "it was not confirmed, and there is nothing to deliver"


def test_a_hole_in_the_log_does_not_end_archiving() -> None:
    machine = rejected()
    limits = FetchLimits(
        owner=OTHER,
        max_records=1,
        batch_size=1,
        group=group_limits(lock_duration_ms=1, max_record_locks=100, delivery_count_limit=2),
    )
    machine.acquire(limits, 2, 0, [], 10)
    assert listed(machine) == [ArchivingRun(0, 9, 1, REJECTED)]


def test_what_was_removed_behind_an_archiving_record_is_not_written_any_more() -> None:
    machine = rejected()
    acknowledge(machine, 10, 14, b"\x01\x01\x02\x01\x01")
    machine.remove_below(13)
    write = store(machine)
    archived = StateBatch(10, 12, RecordState.ARCHIVED, 1)
    assert write.state_batches == [archived, StateBatch(13, 14, RecordState.ACKNOWLEDGED, 1)]
    assert write.delivery_complete_count == machine.delivery_complete_count == 5
    assert runs(machine) == [(0, 9, "ARCHIVING"), (10, 12, "ARCHIVED"), (13, 14, "ACKNOWLEDGED")]


def test_a_wait_for_a_write_of_removed_offsets_ends() -> None:
    machine = rejected()
    write_id = acknowledge(machine, 10, 14, b"\x01")
    machine.remove_below(15)
    write = store(machine)
    assert (write.write_id, write.state_batches) == (write_id, [])
    assert not machine.wants_write


def test_a_reason_stays_with_both_parts_of_a_run_and_ends_with_archiving() -> None:
    machine = SharePartition(start_offset=0, state_batches=[StateBatch(0, 4, RecordState.AVAILABLE, 1)])
    take(machine, 5)
    acknowledge(machine, 0, 4, b"\x03")
    store(machine)
    machine.dead_letters_done(2, 2)
    store(machine)
    assert listed(machine) == [ArchivingRun(0, 1, 2, REJECTED), ArchivingRun(3, 4, 2, REJECTED)]
    assert [run.reason for run in machine.runs()] == [REJECTED, None, REJECTED]
