"""Every rule of the five RPCs."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs
from kshare_core.states import MAX_STATE_EPOCH, STATE_BATCHES_PER_WRITE_LIMIT
from kshare_runtime.memory_store import MemoryDisk
from kshare_share_coordinator.machine.operations import (
    GROUP_ID_BYTES_LIMIT,
    STATE_BATCHES_PER_SHARE_PARTITION_LIMIT,
    Operation,
    Result,
    SnapshotColdState,
    TruncateState,
    key_problem,
)
from kshare_share_coordinator.machine.share_coordinator import SMALL_STATE_BATCHES
from kshare_share_coordinator.machine.share_group_offset import (
    MAX_EPOCH,
    ShareGroupOffset,
    ShareSnapshot,
    ShareTombstone,
    ShareUpdate,
)
from support.share_coordinator.shell import (
    KEY,
    NOW_MS,
    TOPIC_ID,
    ShareCoordinatorShell,
    batches,
    delete,
    initialize,
    read,
    summary,
    write,
)

OTHER = SharePartitionKey("orders", TOPIC_ID, 1)
MANY_RUNS = tuple((10 * i, 10 * i, 2, 1) for i in range(SMALL_STATE_BATCHES + 1))


def new_shell(*operations: Operation, updates_per_snapshot: int = 500) -> ShareCoordinatorShell:
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"), updates_per_snapshot=updates_per_snapshot)
    for operation in operations:
        assert shell.run(operation).error_code == ErrorCode.NONE
    return shell


def state_of(shell: ShareCoordinatorShell, key: SharePartitionKey = KEY) -> ShareGroupOffset:
    state = shell.run(read(key)).state
    assert state is not None
    return state


def refused(shell: ShareCoordinatorShell, operation: Operation) -> Result:
    """The result of an operation that must not write anything."""
    result = shell.run(operation)
    assert shell.newest_records == []
    assert result.error_message
    return result


@pytest.mark.parametrize("state_epoch", [MAX_STATE_EPOCH + 1, 2**31 - 1])
def test_a_state_epoch_above_which_no_group_could_go_on_is_refused(state_epoch: int) -> None:
    shell = new_shell()
    assert refused(shell, initialize(state_epoch=state_epoch)).error_code == ErrorCode.INVALID_REQUEST
    assert shell.run(initialize(state_epoch=MAX_STATE_EPOCH)).error_code == ErrorCode.NONE
    assert refused(shell, write(state_epoch=state_epoch)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("start_offset", [-1, 0, 42])
def test_initialize_creates_a_snapshot(start_offset: int) -> None:
    shell = new_shell(initialize(state_epoch=7, start_offset=start_offset))
    assert shell.newest_records == [
        ShareSnapshot(
            key=KEY,
            snapshot_epoch=0,
            state_epoch=7,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=-1 if start_offset == -1 else 0,
            create_timestamp_ms=NOW_MS,
            write_timestamp_ms=NOW_MS,
            state_batches=(),
        )
    ]


def test_initialize_again_with_the_same_state_epoch_keeps_what_the_leader_wrote() -> None:
    shell = new_shell(initialize(), write(KEY, (5, 6, 2, 1), leader_epoch=3, start_offset=5))
    before = state_of(shell)
    assert shell.run(initialize(start_offset=100)) == Result()
    assert shell.newest_records == []
    assert state_of(shell) == before


def test_initialize_with_a_greater_state_epoch_starts_anew_and_keeps_older_leaders_out() -> None:
    shell = new_shell(initialize(), write(KEY, (5, 6, 2, 1), leader_epoch=3, start_offset=5, delivery_complete_count=2))
    snapshot_epoch = state_of(shell).snapshot_epoch
    shell.run(initialize(state_epoch=2, start_offset=100))
    assert state_of(shell) == ShareGroupOffset(snapshot_epoch + 1, 2, 3, 100, 0, [], 0, NOW_MS)
    assert refused(shell, write(state_epoch=2, leader_epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_initialize_with_an_older_state_epoch_is_fenced() -> None:
    shell = new_shell(initialize(state_epoch=5))
    result = refused(shell, initialize(state_epoch=4))
    assert result.error_code == ErrorCode.FENCED_STATE_EPOCH
    assert "4" in result.error_message and "5" in result.error_message


@pytest.mark.parametrize("operation", [read(), read(leader_epoch=4), write(KEY, (1, 2, 2, 1))])
def test_what_was_never_initialized_is_unknown(operation: Operation) -> None:
    assert refused(new_shell(), operation).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_read_gives_the_state() -> None:
    shell = new_shell(initialize(), write(KEY, (7, 8, 2, 1), (10, 12, 0, 2), start_offset=5, delivery_complete_count=2))
    state = state_of(shell)
    assert (state.state_epoch, state.start_offset, state.delivery_complete_count) == (1, 5, 2)
    assert list(state.state_batches) == batches((7, 8, 2, 1), (10, 12, 0, 2))


def test_read_with_a_greater_leader_epoch_is_a_record_and_fences_the_older_leader() -> None:
    shell = new_shell(initialize(), write(KEY, (7, 8, 2, 1), start_offset=5, delivery_complete_count=2))
    before = state_of(shell)
    assert shell.run(read(leader_epoch=4)).state == before
    (record,) = shell.newest_records
    assert isinstance(record, ShareSnapshot) and record.leader_epoch == 4
    assert state_of(shell) == before._replace(leader_epoch=4, snapshot_epoch=before.snapshot_epoch + 1)
    assert refused(shell, write(leader_epoch=3)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert refused(shell, read(leader_epoch=3)).error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("leader_epoch", [-1, 4])
def test_read_with_no_or_the_same_leader_epoch_changes_nothing(leader_epoch: int) -> None:
    shell = new_shell(initialize(), read(leader_epoch=4))
    result = shell.run(read(leader_epoch=leader_epoch))
    assert result.error_code == ErrorCode.NONE
    assert result.state is not None and result.state.leader_epoch == 4
    assert shell.newest_records == []


@pytest.mark.parametrize(
    ("operation", "error_code"),
    [
        (write(state_epoch=4, leader_epoch=5), ErrorCode.FENCED_STATE_EPOCH),
        (write(state_epoch=-1, leader_epoch=5), ErrorCode.FENCED_STATE_EPOCH),
        (write(state_epoch=5, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (write(state_epoch=5, leader_epoch=-1), ErrorCode.FENCED_LEADER_EPOCH),
        (write(state_epoch=4, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_writes_with_older_epochs_are_fenced(operation: Operation, error_code: ErrorCode) -> None:
    shell = new_shell(initialize(state_epoch=5), read(leader_epoch=5))
    assert refused(shell, operation).error_code == error_code


@pytest.mark.parametrize(
    "operation",
    [
        write(KEY, (5, 4, 2, 1)),
        write(KEY, (-1, 4, 2, 1)),
        write(KEY, (0, (1 << 63) - 1, 2, 1)),
        write(KEY, (5, 6, 1, 1)),
        write(KEY, (5, 6, 5, 1)),
        write(KEY, (5, 6, -1, 1)),
        write(KEY, (5, 6, 2, -1)),
        write(KEY, (5, 6, 2, 32768)),
        write(KEY, (5, 6, 2, 1), (7, 6, 2, 1)),
        write(start_offset=-2),
        write(delivery_complete_count=-2),
        write(KEY, *[(5, 6, 2, 1)] * (STATE_BATCHES_PER_WRITE_LIMIT + 1)),
        initialize(state_epoch=-1),
        initialize(start_offset=-2),
    ],
)
def test_malformed_operations_are_refused_whole(operation: Operation) -> None:
    shell = new_shell(initialize(start_offset=3))
    before = state_of(shell)
    assert refused(shell, operation).error_code == ErrorCode.INVALID_REQUEST
    assert state_of(shell) == before


@pytest.mark.parametrize(
    "key",
    [
        SharePartitionKey("", TOPIC_ID, 0),
        SharePartitionKey("x" * (GROUP_ID_BYTES_LIMIT + 1), TOPIC_ID, 0),
        SharePartitionKey("ü" * (GROUP_ID_BYTES_LIMIT // 2 + 1), TOPIC_ID, 0),
        SharePartitionKey("orders", b"short", 0),
        SharePartitionKey("orders", b"", 0),
        SharePartitionKey("orders", TOPIC_ID, -1),
    ],
)
def test_bad_names_have_a_problem(key: SharePartitionKey) -> None:
    assert key_problem(key)


@pytest.mark.parametrize("key", [KEY, SharePartitionKey("x" * GROUP_ID_BYTES_LIMIT, TOPIC_ID, 2**31 - 1)])
def test_good_names_have_none(key: SharePartitionKey) -> None:
    assert key_problem(key) is None


def test_a_write_names_its_own_leader_epoch_last_even_if_its_history_is_the_stored_one() -> None:
    """A read raises the stored leader epoch without a history; found by the model, once in thousands of examples."""
    history = encode_leader_epochs([EpochEntry(1, 0)])
    first = write(KEY, (0, 0, 2, 1), leader_epoch=1)._replace(leader_epochs=history)
    shell = new_shell(initialize(), first, read(KEY, 2))
    result = refused(shell, first._replace(leader_epoch=2))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "the leader epoch history ends with epoch 1, not 2"


def test_epochs_of_brokers_are_not_compared_with_that_of_the_leader() -> None:
    """A state is cut once for each history; the leader epoch of kshare fences as ever, and says nothing of the log."""
    before, after = (encode_leader_epochs([EpochEntry(57, 0), EpochEntry(epoch, 4)]) for epoch in (60, 61))
    first = write(KEY, (0, 9, 2, 1), leader_epoch=3)._replace(leader_epochs=before, has_brokers_epochs=True)
    shell = new_shell(initialize(), first)
    cut = TruncateState(KEY, 1, 3, 4, 0, 4, batches((0, 3, 2, 1)), after, has_brokers_epochs=True)
    assert shell.run(cut) == Result()
    assert state_of(shell).state_batches == batches((0, 3, 2, 1))
    later = write(KEY, (4, 5, 2, 1), leader_epoch=3)._replace(leader_epochs=after, has_brokers_epochs=True)
    assert shell.run(later) == Result()
    assert shell.run(cut) == Result(), "it arrives again, late"
    assert shell.newest_records == []
    assert state_of(shell).state_batches == batches((0, 5, 2, 1))
    assert refused(shell, later._replace(leader_epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_small_state_is_written_as_a_snapshot() -> None:
    shell = new_shell(initialize(), write(KEY, (5, 6, 2, 1), leader_epoch=0, start_offset=5))
    (record,) = shell.newest_records
    assert isinstance(record, ShareSnapshot)
    assert list(record.state_batches) == batches((5, 6, 2, 1))
    assert (record.snapshot_epoch, record.state_epoch) == (1, 1)


def test_a_large_state_gets_updates_and_a_snapshot_after_so_many() -> None:
    shell = new_shell(initialize(), write(KEY, *MANY_RUNS), updates_per_snapshot=3)
    kinds = []
    for number in range(8):
        shell.run(write(KEY, (1000 + 2 * number, 1000 + 2 * number, 2, 1)))
        (record,) = shell.newest_records
        kinds.append((type(record), getattr(record, "update_number", None)))
    update, snapshot = ShareUpdate, (ShareSnapshot, None)
    assert kinds[:4] == [(update, 1), (update, 2), (update, 3), snapshot]
    assert kinds[4:] == [(update, 1), (update, 2), (update, 3), snapshot]
    assert len(state_of(shell).state_batches) == len(MANY_RUNS) + 8


def newest_kind(shell: ShareCoordinatorShell, operation: Operation) -> type[object]:
    assert shell.run(operation).error_code == ErrorCode.NONE
    (record,) = shell.newest_records
    return type(record)


def test_a_write_is_an_update_where_that_is_smaller() -> None:
    """A snapshot where it is not larger: the first runs, all runs again, or few runs left beyond the start offset."""
    shell = new_shell(initialize())
    few = MANY_RUNS[:3]
    assert newest_kind(shell, write(KEY, *MANY_RUNS)) is ShareSnapshot
    assert newest_kind(shell, write(KEY, *few)) is ShareUpdate
    assert newest_kind(shell, write(KEY, *[(first, last, 2, 2) for first, last, _, _ in MANY_RUNS])) is ShareSnapshot
    assert newest_kind(shell, write(KEY, (0, 1000, 2, 3))) is ShareUpdate
    assert newest_kind(shell, write(KEY, *MANY_RUNS)) is ShareSnapshot
    assert list(state_of(shell).state_batches) == batches((0, 1000, 2, 3))
    shell = new_shell(initialize(), write(KEY, *MANY_RUNS))
    last_but_one = MANY_RUNS[-2][0]
    assert newest_kind(shell, write(KEY, *few, start_offset=0)) is ShareUpdate
    assert newest_kind(shell, write(KEY, *few, start_offset=last_but_one)) is ShareSnapshot
    assert list(state_of(shell).state_batches) == batches(*MANY_RUNS[-2:])


def test_a_cold_share_partition_gets_a_snapshot_of_the_same_state() -> None:
    shell = new_shell(
        initialize(), write(KEY, *MANY_RUNS, start_offset=0), write(KEY, (900, 901, 2, 1), leader_epoch=0)
    )
    before = state_of(shell)
    assert before.update_count == 1
    assert shell.run(SnapshotColdState(KEY, before.snapshot_epoch, 1)) == Result()
    (record,) = shell.newest_records
    assert isinstance(record, ShareSnapshot)
    assert (record.superseded_update_count, record.create_timestamp_ms) == (1, before.create_timestamp_ms)
    shell.restart(shell.store)
    assert state_of(shell) == before._replace(snapshot_epoch=before.snapshot_epoch + 1, update_count=0)


@pytest.mark.parametrize(("epoch_difference", "update_count"), [(0, 2), (0, 0), (1, 1), (-1, 1)])
def test_a_share_partition_that_was_written_meanwhile_is_not_cold(epoch_difference: int, update_count: int) -> None:
    shell = new_shell(initialize(), write(KEY, *MANY_RUNS), write(KEY, (900, 901, 2, 1)))
    epoch = state_of(shell).snapshot_epoch + epoch_difference
    assert shell.run(SnapshotColdState(KEY, epoch, update_count)) == Result()
    assert shell.newest_records == []
    assert shell.run(SnapshotColdState(OTHER, 0, 1)) == Result()
    assert shell.newest_records == []


@pytest.mark.parametrize(("state_epoch", "leader_epoch"), [(2, 0), (1, 1), (2, 1)])
def test_a_greater_epoch_makes_a_snapshot_that_carries_it(state_epoch: int, leader_epoch: int) -> None:
    shell = new_shell(initialize(), write(KEY, *MANY_RUNS), write(KEY, (2000, 2000, 2, 1)))
    assert isinstance(shell.newest_records[0], ShareUpdate)
    shell.run(write(KEY, (3000, 3000, 2, 1), state_epoch=state_epoch, leader_epoch=leader_epoch))
    (record,) = shell.newest_records
    assert isinstance(record, ShareSnapshot)
    assert (record.state_epoch, record.leader_epoch, record.superseded_update_count) == (state_epoch, leader_epoch, 1)
    shell.restart(shell.store)
    state = state_of(shell)
    assert (state.state_epoch, state.leader_epoch) == (state_epoch, leader_epoch)
    assert len(state.state_batches) == len(MANY_RUNS) + 2


@pytest.mark.parametrize("large", [False, True])
def test_the_start_offset_moves_only_forward(large: bool) -> None:
    shell = new_shell(initialize(), write(KEY, *(MANY_RUNS if large else ()), start_offset=0))
    shell.run(write(KEY, (45, 47, 2, 1), start_offset=40, delivery_complete_count=3))
    assert state_of(shell).start_offset == 40
    assert shell.run(write(KEY, (30, 46, 4, 2), start_offset=30, delivery_complete_count=9)).error_code == 0
    state = state_of(shell)
    assert (state.start_offset, state.delivery_complete_count) == (40, 3)
    assert state.state_batches[0].first_offset == 40
    shell.run(write(KEY, start_offset=-1, delivery_complete_count=4))
    state = state_of(shell)
    assert (state.start_offset, state.delivery_complete_count) == (40, 4)


def test_a_repeated_write_changes_nothing_but_epochs_of_records() -> None:
    repeated = write(KEY, (5, 9, 0, 2), (10, 12, 2, 1), start_offset=5, delivery_complete_count=3)
    shell = new_shell(initialize(), repeated)
    before = state_of(shell)
    shell.run(repeated)
    assert state_of(shell)._replace(snapshot_epoch=before.snapshot_epoch) == before


def test_too_many_batches_for_one_share_partition_are_refused() -> None:
    half = STATE_BATCHES_PER_WRITE_LIMIT
    shell = new_shell(initialize())
    for low in range(0, STATE_BATCHES_PER_SHARE_PARTITION_LIMIT, half):
        shell.run(write(KEY, *[(2 * i, 2 * i, 2, 1) for i in range(low, low + half)]))
    assert len(state_of(shell).state_batches) == STATE_BATCHES_PER_SHARE_PARTITION_LIMIT
    beyond = 2 * STATE_BATCHES_PER_SHARE_PARTITION_LIMIT
    assert refused(shell, write(KEY, (beyond, beyond, 2, 1))).error_code == ErrorCode.INVALID_REQUEST
    shell.run(write(KEY, (beyond, beyond, 2, 1), start_offset=2))
    assert len(state_of(shell).state_batches) == STATE_BATCHES_PER_SHARE_PARTITION_LIMIT


def test_delete_removes_everything() -> None:
    shell = new_shell(initialize(), initialize(OTHER), write(KEY, *MANY_RUNS), write(KEY, (2000, 2000, 2, 1)))
    assert shell.run(delete()) == Result()
    assert shell.newest_records == [ShareTombstone(KEY, 1)]
    assert refused(shell, read()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    shell.restart(shell.store)
    assert refused(shell, read()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shell.run(read(OTHER)).error_code == ErrorCode.NONE
    assert shell.run(initialize(state_epoch=0)).error_code == ErrorCode.NONE


def test_deleting_what_is_not_there_succeeds() -> None:
    shell = new_shell()
    assert shell.run(delete()) == Result()
    assert shell.newest_records == []


def test_the_summary_changes_nothing() -> None:
    shell = new_shell(initialize(), write(KEY, (7, 8, 2, 1), leader_epoch=3, start_offset=5, delivery_complete_count=2))
    result = shell.run(summary())
    assert shell.newest_records == []
    assert result.state == state_of(shell)


def test_the_summary_of_what_was_never_initialized_has_no_start_offset() -> None:
    result = new_shell().run(summary())
    assert result.error_code == ErrorCode.NONE
    assert result.state == ShareGroupOffset(0, 0, 0, -1, -1, (), 0)


def test_the_snapshot_epoch_starts_again_after_the_largest_number() -> None:
    shell = new_shell(initialize())
    largest = ShareSnapshot(KEY, MAX_EPOCH, 1, 0, 5, 0, 0, 0, batches(*MANY_RUNS))
    shell.state_store.append([largest])
    shell.restart(shell.store)
    shell.run(write(KEY, (2000, 2000, 2, 1)))
    shell.run(write(KEY, (2002, 2002, 2, 1), leader_epoch=1))
    shell.run(write(KEY, (2004, 2004, 2, 1), leader_epoch=1))
    shell.restart(shell.store)
    state = state_of(shell)
    assert (state.snapshot_epoch, state.update_count) == (0, 1)
    assert state.state_batches[-3:] == batches((2000, 2000, 2, 1), (2002, 2002, 2, 1), (2004, 2004, 2, 1))


def test_operations_of_one_turn_see_each_other() -> None:
    shell = new_shell()
    results = shell.turn(
        initialize(), write(KEY, (5, 6, 2, 1)), read(), delete(), read(), initialize(state_epoch=9), read()
    )
    assert [result.error_code for result in results] == [0, 0, 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]
    shell.restart(shell.store)
    state = state_of(shell)
    assert (state.state_epoch, list(state.state_batches)) == (9, [])


def test_states_that_are_not_durable_are_not_dropped() -> None:
    keys = [SharePartitionKey("orders", TOPIC_ID, partition) for partition in range(20)]
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"), cached_states_limit=3)
    operations: list[Operation] = [initialize(key) for key in keys]
    operations += [write(key, (5, 6, 2, 1)) for key in keys]
    assert {result.error_code for result in shell.turn(*operations)} == {ErrorCode.NONE}
    shell.loaded.clear()
    for key in keys[-3:]:
        assert list(state_of(shell, key).state_batches) == batches((5, 6, 2, 1))
    assert shell.loaded == []
    for key in keys[:3]:
        assert list(state_of(shell, key).state_batches) == batches((5, 6, 2, 1))
    assert shell.loaded == keys[:3]


def test_the_cache_is_bounded_by_batches_too() -> None:
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"), cached_state_batches_limit=len(MANY_RUNS) + 5)
    shell.turn(initialize(), initialize(OTHER), write(KEY, *MANY_RUNS), write(OTHER, *MANY_RUNS))
    shell.loaded.clear()
    state_of(shell, OTHER)
    assert shell.loaded == []
    state_of(shell, KEY)
    assert shell.loaded == [KEY]


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    shell = new_shell(initialize(), initialize(OTHER))
    shell.restart(shell.store)
    assert shell.loaded == []
    shell.run(read(OTHER))
    shell.run(read(OTHER))
    assert shell.loaded == [OTHER]
