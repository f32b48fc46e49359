"""Record batches and windows of more offsets than a state write may have batches."""

from __future__ import annotations

import tracemalloc

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import IN_FLIGHT_OFFSETS_LIMIT, STATE_BATCHES_PER_WRITE_LIMIT, RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, Acquisition, FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch, StateWrite
from support.leader.share.group_limits import group_limits

OWNER = Owner("m1", 1, "a")
LIMITS = group_limits()
DEAD_LETTERS = group_limits(dead_letters=True)
ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"
AVAILABLE, ARCHIVED = RecordState.AVAILABLE, RecordState.ARCHIVED


def take(
    machine: SharePartition, batches: list[tuple[int, int]], *, max_records: int = 500, max_record_locks: int = 2_000
) -> Acquisition:
    limits = FetchLimits(
        owner=OWNER,
        max_records=max_records,
        batch_size=max_records,
        group=group_limits(max_record_locks=max_record_locks),
        fetch_number=1,
    )
    position = machine.next_fetch(machine.start_offset, limits.group)
    if position is None:
        return Acquisition([], True)
    return machine.acquire(limits, 0, position.offset, batches, batches[-1][1] + 1)


def acknowledge(machine: SharePartition, first: int, last: int, types: bytes, *, dead_letters: bool = False) -> int:
    batch = AcknowledgementBatch(first, last, types)
    limits = DEAD_LETTERS if dead_letters else LIMITS
    return machine.acknowledge(OWNER, 1, [batch], limits, delivered_fetch_number=1)


def next_write(machine: SharePartition) -> StateWrite:
    write = machine.next_write()
    assert write is not None
    return write


def store(machine: SharePartition) -> list[StateWrite]:
    """Stores all changes, as a share coordinator does that refuses writes with too many batches."""
    writes: list[StateWrite] = []
    while (write := machine.next_write()) is not None:
        assert len(write.state_batches) <= STATE_BATCHES_PER_WRITE_LIMIT
        machine.write_succeeded(write.write_id)
        writes.append(write)
    return writes


def loaded(count: int, *, state_batches_limit: int = STATE_BATCHES_PER_WRITE_LIMIT) -> SharePartition:
    """`count` offsets that an earlier leader's member released, all Acquired now."""
    stored = [StateBatch(0, count - 1, AVAILABLE, 1)]
    machine = SharePartition(start_offset=0, state_batches=stored, state_batches_limit=state_batches_limit)
    assert take(machine, [(0, count - 1)]).records == [(0, count - 1, 2)]
    return machine


def states(machine: SharePartition) -> list[tuple[int, int, str]]:
    return [(run.first_offset, run.last_offset, run.state.name) for run in machine.runs()]


def test_a_record_batch_is_cut_where_the_window_is_full() -> None:
    machine = SharePartition(start_offset=0)
    batch = (0, 11_999)
    assert take(machine, [batch]) == ([AcquiredRecords(0, 9_999, 1)], True)
    assert (machine.window, take(machine, [batch]).records) == (IN_FLIGHT_OFFSETS_LIMIT, [])
    acknowledge(machine, 0, 8_999, ACCEPT)
    store(machine)
    assert take(machine, [batch]) == ([AcquiredRecords(10_000, 11_999, 1)], True)
    acknowledge(machine, 9_000, 11_999, ACCEPT)
    store(machine)
    assert (machine.start_offset, machine.window) == (12_000, 0)


def test_the_second_batch_of_a_fetch_is_cut_too_and_nothing_is_taken_from_the_third() -> None:
    machine = SharePartition(start_offset=0)
    taken = take(machine, [(0, 5_999), (6_000, 11_999), (12_000, 12_009)], max_records=20_000, max_record_locks=10_000)
    assert taken == ([AcquiredRecords(0, 9_999, 1)], True)


def test_holes_do_not_make_the_window_longer_than_a_write() -> None:
    """Single records of transactions, with a marker behind each: as many holes as records."""
    machine = SharePartition(start_offset=0)
    singles = [(offset, offset) for offset in range(0, 30_000, 2)]
    take(machine, singles, max_records=15_000, max_record_locks=10_000)
    assert machine.window == len(machine.runs()) == IN_FLIGHT_OFFSETS_LIMIT
    acknowledge(machine, 9_998, 9_998, RELEASE)
    assert [len(write.state_batches) for write in store(machine)] == [STATE_BATCHES_PER_WRITE_LIMIT - 1]


def test_a_large_hole_is_no_obstacle() -> None:
    machine = SharePartition(start_offset=0)
    taken = take(machine, [(0, 9), (50_000, 50_009)])
    assert taken.records == [AcquiredRecords(0, 9, 1), AcquiredRecords(50_000, 50_009, 1)]


@pytest.mark.parametrize("length", [11_000, 20_000])
@pytest.mark.parametrize("is_loaded", [False, True], ids=["new window", "loaded window"])
def test_locks_on_a_long_record_batch_end(length: int, is_loaded: bool) -> None:
    """Every second record was released and acquired again, so that the delivery counts alternate."""
    machine = loaded(length) if is_loaded else SharePartition(start_offset=0)
    if not is_loaded:
        take(machine, [(0, length - 1)])
    held = machine.acquired_count
    assert held == (length if is_loaded else IN_FLIGHT_OFFSETS_LIMIT)
    for first in range(0, held, 1_000):
        batches = [AcknowledgementBatch(offset, offset, RELEASE) for offset in range(first, first + 1_000, 2)]
        machine.acknowledge(OWNER, 1, batches, LIMITS, delivered_fetch_number=1)
        store(machine)
    take(machine, [(0, length - 1)], max_records=length)
    assert (machine.acquired_count, len(machine.runs())) == (held, held)
    machine.release(OWNER.__eq__, LIMITS)
    writes = store(machine)
    assert sum(len(write.state_batches) for write in writes) == held
    assert (machine.acquired_count, machine.available_count) == (0, held)


def test_what_does_not_fit_into_a_write_follows_with_the_same_id_before_later_changes() -> None:
    machine = loaded(10, state_batches_limit=3)
    write_id = acknowledge(machine, 0, 7, (ACCEPT + RELEASE) * 4)
    first = next_write(machine)
    assert [batch[:2] for batch in first.state_batches] == [(0, 0), (1, 1), (2, 2)]
    assert (first.write_id, first.has_more, first.delivery_complete_count) == (write_id, True, 2)
    later_id = acknowledge(machine, 8, 8, ACCEPT)
    machine.write_succeeded(write_id)
    assert (machine.start_offset, machine.durable_start_offset, machine.acquired_count) == (1, 1, 7)
    second = next_write(machine)
    assert [batch[:2] for batch in second.state_batches] == [(3, 3), (4, 4), (5, 5)]
    assert (second.write_id, second.has_more, second.start_offset) == (write_id, True, 1)
    machine.write_succeeded(write_id)
    third, fourth = store(machine)
    assert (third.write_id, third.has_more, fourth.write_id) == (write_id, False, later_id)
    assert [run.first_offset for run in machine.runs() if run.state is AVAILABLE] == [1, 3, 5, 7]


def test_the_start_offset_does_not_pass_changes_that_follow() -> None:
    machine = loaded(10, state_batches_limit=3)
    write_id = acknowledge(machine, 0, 7, (ACCEPT + REJECT) * 4)
    starts = []
    while (write := machine.next_write()) is not None:
        assert (write.write_id, machine.durable_start_offset) == (write_id, machine.start_offset)
        machine.write_succeeded(write_id)
        starts.append((machine.start_offset, machine.durable_start_offset))
    assert starts == [(3, 3), (6, 6), (8, 8)]


def test_a_failed_write_drops_the_changes_that_would_follow_it_and_no_others() -> None:
    machine = loaded(10, state_batches_limit=2)
    write_id = acknowledge(machine, 0, 7, (ACCEPT + RELEASE) * 4)
    machine.write_succeeded(next_write(machine).write_id)
    acknowledge(machine, 9, 9, ACCEPT)
    assert next_write(machine).has_more
    machine.write_failed(write_id)
    assert states(machine) == [(1, 1, "AVAILABLE"), (2, 8, "ACQUIRED"), (9, 9, "ACQUIRED")]
    (only,) = store(machine)
    assert only.state_batches == [StateBatch(9, 9, RecordState.ACKNOWLEDGED, 2)]
    acknowledge(machine, 2, 8, ACCEPT)
    store(machine)
    assert states(machine) == [(1, 1, "AVAILABLE"), (2, 9, "ACKNOWLEDGED")]


@pytest.mark.parametrize("log_start", [2, 5, 8, 12])
def test_records_that_the_log_loses_between_two_writes_of_an_id(log_start: int) -> None:
    machine = loaded(10, state_batches_limit=3)
    write_id = acknowledge(machine, 0, 7, (RELEASE + ACCEPT) * 4)
    first = next_write(machine)
    machine.remove_below(log_start)
    machine.write_succeeded(first.write_id)
    writes = store(machine)
    assert write_id in [write.write_id for write in writes], "an acknowledgement waits for it"
    offsets = [offset for write in writes for first, last, _, _ in write.state_batches for offset in (first, last)]
    assert all(offset >= max(3, log_start) for offset in offsets), "what is lost or stored is not written again"
    left = [(offset, "AVAILABLE") for offset in (0, 2, 4, 6) if offset >= log_start]
    assert [(run[0], run[2]) for run in states(machine) if run[2] == "AVAILABLE"] == left


def test_dead_letters_are_due_in_the_order_of_offsets() -> None:
    machine = loaded(6, state_batches_limit=2)
    acknowledge(machine, 0, 5, (REJECT + ACCEPT) * 3, dead_letters=True)
    listed = []
    while (write := machine.next_write()) is not None:
        machine.write_succeeded(write.write_id)
        listed.append([run.first_offset for run in machine.archiving(10, DEAD_LETTERS)])
    assert listed == [[0], [0, 2], [0, 2, 4]]


def test_unchanged_runs_before_the_first_change_fill_writes_of_their_own() -> None:
    machine = SharePartition(start_offset=0, state_batches_limit=2)
    take(machine, [(offset, offset) for offset in (0, 2, 4, 6)])
    write_id = acknowledge(machine, 6, 6, RELEASE)
    writes = store(machine)
    assert [[batch[:3] for batch in write.state_batches] for write in writes] == [
        [(0, 0, AVAILABLE), (1, 1, ARCHIVED)],
        [(2, 2, AVAILABLE), (3, 3, ARCHIVED)],
        [(4, 4, AVAILABLE), (5, 5, ARCHIVED)],
        [(6, 6, AVAILABLE)],
    ]
    assert [(write.write_id, write.has_more) for write in writes] == [(write_id, True)] * 3 + [(write_id, False)]


def test_an_acknowledgement_outside_the_window_is_refused_before_its_types_are_looked_at() -> None:
    machine = loaded(10)
    count = 1_000_000
    types = (ACCEPT + RELEASE) * (count // 2)
    tracemalloc.start()
    with pytest.raises(KafkaError) as refusal:
        acknowledge(machine, 0, count - 1, types)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert peak_bytes < 3 * count, "nothing is made for each offset"
