"""The place of records in the store, and failures of the disk or damage to its content."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_share_coordinator.machine.share_coordinator import SMALL_STATE_BATCHES
from kshare_share_coordinator.records import SHARE_SNAPSHOT, encode_key
from kshare_share_coordinator.state_store import family_of
from support.share_coordinator.shell import (
    KEY,
    STATE_PARTITION_COUNT,
    TOPIC_ID,
    ShareCoordinatorShell,
    delete,
    initialize,
    read,
    summary,
    write,
)

FAMILY = family_of(state_partition_of(KEY, STATE_PARTITION_COUNT))
PREFIX = encode_key(SHARE_SNAPSHOT, KEY)[2:]
SNAPSHOT_KEY = PREFIX + b"\x00\x00"
MANY_RUNS = tuple((10 * i, 10 * i, 2, 1) for i in range(SMALL_STATE_BATCHES + 1))


def update_key(number: int) -> bytes:
    return PREFIX + b"\x00\x01" + number.to_bytes(4, "big")


def stored_keys(shell: ShareCoordinatorShell) -> list[bytes]:
    return [key for key, _ in shell.store.scan(FAMILY, b"")]


def shell_with_updates(disk: MemoryDisk | None = None) -> ShareCoordinatorShell:
    shell = ShareCoordinatorShell((disk or MemoryDisk()).open_store("test"))
    shell.turn(initialize(), write(KEY, *MANY_RUNS), write(KEY, (900, 900, 2, 1)), write(KEY, (1000, 1000, 2, 1)))
    return shell


def test_a_snapshot_and_its_updates_are_neighbours() -> None:
    assert stored_keys(shell_with_updates()) == [SNAPSHOT_KEY, update_key(1), update_key(2)]


def test_a_new_snapshot_takes_its_updates_away() -> None:
    shell = shell_with_updates()
    shell.run(read(leader_epoch=1))
    assert stored_keys(shell) == [SNAPSHOT_KEY]
    assert shell.store.get(FAMILY, SNAPSHOT_KEY)


def test_delete_leaves_nothing() -> None:
    shell = shell_with_updates()
    shell.run(delete())
    assert stored_keys(shell) == []


def test_share_partitions_with_alike_names_do_not_mix() -> None:
    keys = [
        SharePartitionKey(group_id, TOPIC_ID, partition)
        for group_id in ("a", "aa", "a\x00", "a\x01")
        for partition in (0, 1, 2**31 - 1)
    ]
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"))
    shell.state_store = type(shell.state_store)(store=shell.store, state_partition_of=lambda key: 0)
    for number, key in enumerate(keys):
        runs = (*MANY_RUNS, (500, 500, 2, 1), (600, 600, 2, 1))
        shell.turn(initialize(key, start_offset=number), write(key, *runs), write(key, (900, 900, 2, 1)))
    shell.machine.records_are_durable()
    for number, key in enumerate(keys):
        assert [type(record).__name__ for record in shell.state_store.load(key)] == ["ShareSnapshot", "ShareUpdate"]
        state = shell.run(summary(key)).state
        assert state is not None and state.start_offset == number
    shell.run(delete(keys[4]))
    assert [len(shell.state_store.load(key)) for key in keys] == [2] * 4 + [0] + [2] * 7


def test_a_failed_write_leaves_no_trace() -> None:
    disk = MemoryDisk()
    shell = shell_with_updates(disk)
    before = shell.run(read()).state
    disk.fail_next_writes(1)
    with pytest.raises(StorageFailure):
        shell.turn(write(KEY, (2000, 2000, 2, 1)), read(leader_epoch=7), delete())
    assert shell.run(read()).state == before
    assert shell.run(write(KEY, (2000, 2000, 2, 1))).error_code == ErrorCode.NONE


class FailingReads:
    """A store whose disk cannot be read."""

    def __init__(self, shell: ShareCoordinatorShell) -> None:
        self._store = shell.raw_store
        self.failing = True

    def __getattr__(self, name: str) -> object:
        if name == "scan" and self.failing:
            raise StorageFailure("bad block")
        return getattr(self._store, name)


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_failing_read_is_answered_and_reported_until_the_disk_can_be_read(is_asked_again: bool) -> None:
    """Nobody may ask again: what others ask for is in memory."""
    shell = shell_with_updates()
    disk = FailingReads(shell)
    shell.restart(disk)  # type: ignore[arg-type]
    for operation in (read(), write(), initialize(), delete(), summary()):
        result = shell.run(operation)
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "bad block" in result.error_message and str(KEY) in result.error_message
    assert any("bad block" in problem for problem in shell.state_store.problems())
    assert any("bad block" in problem for problem in shell.state_store.problems())
    disk.failing = False
    if is_asked_again:
        assert shell.run(read()).error_code == ErrorCode.NONE
    assert shell.state_store.problems() == []


OTHER = SharePartitionKey("orders", TOPIC_ID, 1)


def test_a_failing_read_is_reported_until_the_share_partition_belongs_to_another_node() -> None:
    shell = shell_with_updates()
    shell.restart(FailingReads(shell))  # type: ignore[arg-type]
    assert shell.run(read()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    shell.state_store.forget(lambda key: key == OTHER)
    assert any("bad block" in problem for problem in shell.state_store.problems())
    shell.state_store.forget(lambda key: key == KEY)
    assert shell.state_store.problems() == []


@pytest.mark.parametrize(
    "damage",
    [
        [Write(FAMILY, SNAPSHOT_KEY, b"\x00\x00\x01")],
        [Write(FAMILY, SNAPSHOT_KEY, None)],
        [Write(FAMILY, update_key(1), None)],
        [Write(FAMILY, update_key(1), b"")],
        [Write(FAMILY, update_key(2), b"\x00\x00" + b"\x00\x00\x00\x63" + bytes(4) + b"\xff" * 8 + b"\x01\x00")],
        [Write(FAMILY, PREFIX + b"\x00\x01\x07", b"")],
    ],
)
def test_a_corrupt_share_partition_answers_with_an_error_and_the_others_go_on(damage: list[Write]) -> None:
    shell = shell_with_updates()
    shell.run(initialize(OTHER))
    shell.store.write(damage)
    shell.restart(shell.store)
    for operation in (read(), write(), initialize(), summary()):
        result = shell.run(operation)
        assert result.error_code == ErrorCode.CORRUPT_MESSAGE
        assert str(KEY) in result.error_message
    assert shell.run(read(OTHER)).error_code == ErrorCode.NONE
    # Deleting is the way to be rid of it, and then it can be initialized again, even within the same turn.
    results = shell.turn(delete(), initialize(state_epoch=3), write(KEY, (5, 6, 2, 1), state_epoch=3), read())
    assert [result.error_code for result in results] == [ErrorCode.NONE] * 4
    assert stored_keys(shell) == [SNAPSHOT_KEY]
    shell.restart(shell.store)
    assert shell.run(read()).error_code == ErrorCode.NONE


def test_corrupt_share_partitions_are_reported_until_deleted() -> None:
    shell = shell_with_updates()
    shell.store.write([Write(FAMILY, SNAPSHOT_KEY, b"?")])
    shell.restart(shell.store)
    result = shell.run(read())
    shell.state_store.report_corrupt(KEY, result.error_message)
    (problem,) = shell.state_store.problems()
    assert str(KEY) in problem
    shell.run(delete())
    assert shell.state_store.problems() == []


def test_a_corrupt_share_partition_is_reported_until_it_can_be_read() -> None:
    """A bit may be wrong on the way from the disk only. A state that is decoded and makes no sense stays reported."""
    shell = shell_with_updates()
    whole = {key: shell.store.get(FAMILY, key) for key in (SNAPSHOT_KEY, update_key(1))}
    for damage in (Write(FAMILY, SNAPSHOT_KEY, b"?"), Write(FAMILY, update_key(1), None)):
        shell.store.write([damage])
        shell.restart(shell.store)
        result = shell.run(read())
        shell.state_store.report_corrupt(KEY, result.error_message)
        assert shell.run(read()).error_code == ErrorCode.CORRUPT_MESSAGE
        assert len(shell.state_store.problems()) == shell.state_store.corrupt_count == 1
        shell.store.write([Write(FAMILY, damage.key, whole[damage.key])])
        assert shell.run(read()).error_code == ErrorCode.NONE
        assert shell.state_store.problems() == [] and shell.state_store.corrupt_count == 0
