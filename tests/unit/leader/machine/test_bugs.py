"""Bugs of other implementations, by their number in Kafka's tracker, that the machine must not have."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch, check_batches
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch
from support.leader.share.group_limits import group_limits
from support.leader.share.script import Script


def play(text: str) -> list[str]:
    """The output of all commands of a script."""
    script = Script()
    return [line for command in text.strip().splitlines() for line in script.run(command.strip())]


def test_kafka_19476_a_timeout_does_not_override_a_pending_acknowledgement() -> None:
    output = play("""
        log 0-9
        fetch c1
        at 29999
        ack c1 0-4:X
        write
        at 30000
        expire
        stored
        store
        state
    """)
    assert output[-2:] == ["start 5 end 10", "  5-9 AVAILABLE count 1"]


def test_kafka_19476_a_lock_that_ran_out_during_a_failed_write_is_released() -> None:
    output = play("""
        log 0-9
        fetch c1
        at 29999
        ack c1 0-9:A
        write
        at 30000
        expire
        failed
        state
        expire
        store
        state
    """)
    assert "no write to wait for" in output, "the first expire left the pending change alone"
    assert output[-2:] == ["start 0 end 10", "  0-9 AVAILABLE count 1"]


def test_kafka_19476_an_acknowledged_record_is_not_delivered_by_a_late_timer() -> None:
    output = play("""
        log 0-9
        fetch c1
        ack c1 0-9:A
        store
        at 40000
        expire
        fetch c2
    """)
    assert output[-2:] == ["no write to wait for", "nothing"]


def test_kafka_19476_the_limit_holds_for_a_timeout_after_a_failed_write() -> None:
    output = play("""
        recover 0 0-9:AVAILABLE:4
        log 0-9
        limits delivery_count_limit=5
        fetch c1
        at 29999
        ack c1 0:R
        write
        at 30000
        expire
        failed
        expire
        store
        state
    """)
    assert output[-2:] == ["start 1 end 10", "  1-9 AVAILABLE count 4"], "0 was on its last attempt, alone"


def test_kafka_18084_what_waits_for_a_write_is_neither_acquired_nor_acknowledged_again() -> None:
    output = play("""
        log 0-9
        fetch c1
        ack c1 0-9:R
        write
        fetch c2
        ack c1 3:A
        stored
        fetch c2
    """)
    assert output[-3] == "nothing"
    assert "INVALID_RECORD_STATE" in output[-2] and "waits for an earlier change" in output[-2]
    assert output[-1] == "acquired 0-9 count 2"


def test_a_release_during_a_write_that_fails_is_not_forgotten() -> None:
    output = play("""
        log 0-9
        fetch c1
        ack c1 0-9:A
        write
        release c1
        failed
        expire
        store
        state
    """)
    assert output[-1] == "  0-9 AVAILABLE count 1"


def test_kafka_19953_a_release_goes_past_records_of_other_members() -> None:
    output = play("""
        log 0 1 2 3
        limits max_records=1
        fetch c1
        fetch c2
        fetch c1
        fetch c2
        release c1
        store
        state
    """)
    assert output[-4:] == [
        "  0 AVAILABLE count 1",
        "  1 ACQUIRED count 1 by c2",
        "  2 AVAILABLE count 1",
        "  3 ACQUIRED count 1 by c2",
    ]


def test_kafka_19954_overlapping_stored_batches_do_not_overlap_in_flight() -> None:
    batches = [
        StateBatch(10, 19, RecordState.ACKNOWLEDGED, 1),
        StateBatch(15, 24, RecordState.AVAILABLE, 2),
        StateBatch(5, 9, RecordState.AVAILABLE, 1),
        StateBatch(12, 13, RecordState.AVAILABLE, 1),
    ]
    machine = SharePartition(start_offset=8, state_batches=batches)
    runs = [(run.first_offset, run.last_offset, run.state.name, run.delivery_count) for run in machine.runs()]
    assert runs == [(8, 9, "AVAILABLE", 1), (10, 19, "ACKNOWLEDGED", 1), (20, 24, "AVAILABLE", 2)]


def test_kafka_18494_gaps_in_the_recovered_state_are_delivered() -> None:
    output = play("""
        recover 100 105-109:ACKNOWLEDGED:1 115-119:AVAILABLE:2
        log 100-109 110-119
        fetch c1
    """)
    assert output == ["acquired 100-104 count 1", "acquired 110-114 count 1", "acquired 115-119 count 3"]


def test_kafka_17351_a_batch_that_was_compacted_away_does_not_hold_the_start_offset() -> None:
    output = play("""
        log 0-9 10-19 20-29
        limits max_records=10
        fetch c1
        fetch c1
        ack c1 0-19:R
        store
        compact 0-9
        fetch c1
        state
        store
    """)
    assert output[-4:] == [
        "acquired 10-19 count 2",
        "start 10 end 20",
        "  10-19 ACQUIRED count 2 by c1",
        "write start_offset=10 done=0",
    ]


def test_kafka_17210_state_with_nothing_available_does_not_use_up_the_window() -> None:
    machine = SharePartition(start_offset=0, state_batches=[StateBatch(0, 1999, RecordState.ACKNOWLEDGED, 1)])
    assert (machine.start_offset, machine.window) == (2000, 0)
    assert machine.has_deliverable(2001, group_limits(max_record_locks=2000))


def test_state_that_begins_with_settled_records_moves_the_stored_start_offset() -> None:
    """As after a write with an unknown outcome: without a further write, the group's lag would stay for ever."""
    output = play("recover 22 22-24:ACKNOWLEDGED:1 25-29:AVAILABLE:1 30-39:ARCHIVED:5\nstore\nstate\nstore")
    assert output == [
        "write start_offset=25 done=10",
        "start 25 end 40",
        "  25-29 AVAILABLE count 1",
        "  30-39 ARCHIVED count 5",
        "no write",
    ]


def test_kafka_17210_a_fetch_of_an_empty_log_leaves_nothing_behind() -> None:
    assert play("fetch c1\nlog 0-9\nfetch c2") == ["nothing", "acquired 0-9 count 1"]


def test_kafka_19972_a_session_that_ends_again_and_again_reaches_the_limit() -> None:
    output = play("recover 7 7:AVAILABLE:0\nlog 7" + "\nfetch c1\nrelease c1\nstore" * 5 + "\nfetch c1\nstate")
    assert output[-2:] == ["nothing", "start 8 end 8"]


def test_window_at_the_limit_stops_new_records_but_not_redelivery() -> None:
    output = play("""
        log 0-49 50-99 100-149
        limits max_record_locks=100 max_records=50
        fetch c1
        fetch c2
        fetch c3
        ack c2 60-69:R
        store
        fetch c3
        ack c1 0-49:A
        store
        fetch c3
    """)
    fetched = [line for line in output if line.startswith(("acquired", "nothing"))]
    assert fetched == [
        "acquired 0-49 count 1",
        "acquired 50-99 count 1",
        "nothing",
        "acquired 60-69 count 2",
        "acquired 100-149 count 1",
    ]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, ["acquired 0-15 count 1", "acquired 16-31 count 1"]),
        (2, ["acquired 0-15 count 3", "acquired 16-31 count 3"]),
        (3, ["acquired 0-7 count 4"]),
        (4, ["acquired 0 count 5"]),
        (7, ["acquired 0 count 8"]),
    ],
)
def test_records_that_fail_are_delivered_in_ever_smaller_groups(count: int, expected: list[str]) -> None:
    output = play(
        f"recover 0 0-31:AVAILABLE:{count}\nlog 0-15 16-31 32-47\nlimits max_records=32 batch_size=16\nfetch c"
    )
    assert output == expected


def test_a_healthy_record_is_not_delivered_with_a_failing_one_behind_it() -> None:
    output = play("recover 0 0-3:AVAILABLE:0 4-9:AVAILABLE:3\nlog 0-9 10-19\nfetch c1\nfetch c2\nfetch c3\nfetch c4")
    assert output == [
        "acquired 0-3 count 1",
        "acquired 4-8 count 4",
        "acquired 9 count 4",
        "acquired 10-19 count 1",
    ]


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ("5-4:A", ErrorCode.INVALID_REQUEST),
        ("0-1:", ErrorCode.INVALID_REQUEST),
        ("0-2:AA", ErrorCode.INVALID_REQUEST),
        ("0:AA", ErrorCode.INVALID_REQUEST),
        ("4-5:A 0-1:A", ErrorCode.INVALID_REQUEST),
        ("0-5:A 3-6:A", ErrorCode.INVALID_REQUEST),
        ("0-4:A 4-6:A", ErrorCode.INVALID_RECORD_STATE),
        ("0-4:A 5-10:A", ErrorCode.INVALID_REQUEST),
        ("0-4:A 1000000000000:A", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_bad_acknowledgement_changes_nothing(batches: str, code: ErrorCode) -> None:
    output = play(f"log 0-9\nfetch c1\nack c1 {batches}\nwrite\nstate")
    assert output[1].startswith(code.name)
    assert output[2:] == ["no write", "start 0 end 10", "  0-9 ACQUIRED count 1 by c1"]


def test_unknown_type_and_renew_without_leave_are_invalid_requests() -> None:
    for types in (b"\x05", b"\xff", b"\x04"):
        with pytest.raises(KafkaError) as refused:
            check_batches([AcknowledgementBatch(0, 0, types)], renew_allowed=False)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    check_batches([AcknowledgementBatch(0, 0, b"\x04")], renew_allowed=True)


def test_changes_during_a_write_go_together_with_the_next_one() -> None:
    output = play("""
        log 0-9
        fetch c1
        ack c1 0:A
        write
        ack c1 1:A
        ack c1 2:R
        ack c1 3:X
        write
        stored
        write
    """)
    assert output == [
        "acquired 0-9 count 1",
        "waits for write 1",
        "write start_offset=1 done=0",
        "waits for write 2",
        "waits for write 2",
        "waits for write 2",
        "no write",
        "write start_offset=-1 done=2",
        "  1 2 (ACKNOWLEDGED) count 1",
        "  2 0 (AVAILABLE) count 1",
        "  3 4 (ARCHIVED) count 1",
    ]


def test_holes_between_new_batches_are_not_delivered() -> None:
    output = play("log 0-9 20-29\nfetch c1\nack c1 0-9:A\nstore\nstate")
    assert output == [
        "acquired 0-9 count 1",
        "acquired 20-29 count 1",
        "waits for write 1",
        "write start_offset=20 done=0",
        "start 20 end 30",
        "  20-29 ACQUIRED count 1 by c1",
    ]


def test_record_limit_tears_a_batch_and_batch_optimized_does_not() -> None:
    torn = play("log 0-9 10-19\nlimits record_limit=1 max_records=12\nfetch c1\nfetch c2")
    assert torn == ["acquired 0-11 count 1", "acquired 12-19 count 1"]
    whole = play("log 0-9 10-19 20-29\nlimits max_records=12\nfetch c1\nfetch c2")
    assert whole == ["acquired 0-19 count 1", "acquired 20-29 count 1"]


def test_a_start_offset_whose_write_failed_is_written_again() -> None:
    output = play("""
        recover 0 0-9:AVAILABLE:1
        log_start 5
        write
        failed
        write
        stored
        write
    """)
    assert output == ["write start_offset=5 done=0", "write start_offset=5 done=0", "no write"]


def test_an_undo_does_not_end_what_waits_for_its_write() -> None:
    output = play("log 0-9\nfetch c1\nack c1 0-4:A\nundo c1 0-9:1\nstore\nstate")
    assert output[-2:] == ["start 5 end 10", "  5-9 AVAILABLE count 0"]


def test_kafka_19632_records_read_in_other_pieces_than_before_do_not_overlap_in_flight() -> None:
    """The same records lie in other batches when they are read again: from another offset, or after compaction."""
    machine = SharePartition(start_offset=0)
    limits = FetchLimits(
        owner=Owner("c1"),
        max_records=7,
        batch_size=100,
        group=group_limits(lock_duration_ms=10, max_record_locks=100, delivery_count_limit=9),
    )
    for now_ms, batches in enumerate([[(0, 9), (10, 19)], [(0, 19)], [(5, 12)], [(0, 4), (6, 8), (13, 19)]]):
        machine.expire(100 * now_ms, group_limits(delivery_count_limit=9))
        write = machine.next_write()
        if write is not None:
            machine.write_succeeded(write.write_id)
        machine.acquire(limits, 100 * now_ms, batches[0][0], batches, batches[-1][1] + 1)
        runs = machine.runs()
        assert [run.first_offset for run in runs[1:]] == [run.last_offset + 1 for run in runs[:-1]]
        assert sum(run.length for run in runs) == machine.window


def test_kafka_19227_a_start_offset_that_moves_makes_new_records_deliverable() -> None:
    script = Script()
    for command in ["log 0-9 10-19", "limits max_record_locks=10", "fetch c1"]:
        script.run(command)
    assert not script.machine.has_deliverable(20, group_limits(max_record_locks=10))
    for command in ["ack c1 1-9:A", "store"]:
        script.run(command)
    assert not script.machine.has_deliverable(20, group_limits(max_record_locks=10)), (
        "what is done behind a held record makes no room"
    )
    for command in ["ack c1 0:A", "store"]:
        script.run(command)
    assert script.machine.has_deliverable(20, group_limits(max_record_locks=10))


def test_kafka_19630_a_log_start_behind_several_batches_archives_all_of_them() -> None:
    output = play("""
        log 0-9 10-19 20-29 30-39
        fetch c1
        ack c1 0-9:R 20-24:R
        store
        log_start 35
        state
    """)
    assert output[-2:] == ["start 35 end 40", "  35-39 ACQUIRED count 1 by c1"]


def test_a_lock_is_not_ended_by_the_deadline_that_it_had_before_it_was_renewed() -> None:
    output = play("""
        log 0-9
        fetch c1
        at 29999
        ack c1 0-9:N
        at 30000
        expire
        at 59998
        expire
        state
        at 59999
        expire
    """)
    assert output[1:] == [
        "no write to wait for",
        "no write to wait for",
        "no write to wait for",
        "start 0 end 10",
        "  0-9 ACQUIRED count 1 by c1",
        "waits for write 1",
    ]


def test_a_single_offset_between_what_is_stored_and_what_changed_is_stored_too() -> None:
    output = play("log 0 1-9\nfetch c1\nack c1 1-9:A\nstore")
    assert output[-2:] == ["  0 0 (AVAILABLE) count 0", "  1-9 2 (ACKNOWLEDGED) count 1"]


def test_an_acknowledgement_of_a_newer_acquisition_than_was_delivered_is_refused() -> None:
    machine = SharePartition(start_offset=0)
    limits = FetchLimits(
        owner=Owner("c1"),
        max_records=9,
        batch_size=9,
        fetch_number=7,
        group=group_limits(lock_duration_ms=10, max_record_locks=100, delivery_count_limit=9),
    )
    machine.acquire(limits, 0, 0, [(0, 9)], 10)
    batch = [AcknowledgementBatch(0, 9, b"\x01")]
    with pytest.raises(KafkaError, match="not delivered yet") as refused:
        machine.acknowledge(
            limits.owner, 1, batch, group_limits(delivery_count_limit=5, lock_duration_ms=10), delivered_fetch_number=6
        )
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    assert machine.acknowledge(
        limits.owner, 1, batch, group_limits(delivery_count_limit=5, lock_duration_ms=10), delivered_fetch_number=7
    )


def test_acknowledgements_in_any_order_are_written_in_the_order_of_offsets() -> None:
    output = play("log 0-9\nfetch c1\nack c1 5-7:R\nack c1 1-4:A\nack c1 0:R\nstore")
    assert output[-4:] == [
        "write start_offset=-1 done=4",
        "  0 0 (AVAILABLE) count 1",
        "  1-4 2 (ACKNOWLEDGED) count 1",
        "  5-7 0 (AVAILABLE) count 1",
    ]
