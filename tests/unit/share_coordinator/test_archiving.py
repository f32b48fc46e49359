"""Records on their way to a dead-letter topic (KIP-1191), and how many are delivered to their end (KIP-1226)."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.memory_store import MemoryDisk
from kshare_share_coordinator.machine.operations import Operation
from kshare_share_coordinator.machine.share_coordinator import SMALL_STATE_BATCHES
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset, ShareSnapshot, ShareUpdate
from kshare_share_coordinator.records import decode_snapshot, decode_update, encode_snapshot, encode_update
from support.share_coordinator.shell import (
    KEY,
    TOPIC_ID,
    ShareCoordinatorShell,
    batches,
    initialize,
    read,
    summary,
    write,
)

AVAILABLE, ARCHIVING, ARCHIVED = 0, 3, 4
MANY_RUNS = tuple((100 + 10 * i, 100 + 10 * i, 2, 1) for i in range(SMALL_STATE_BATCHES + 1))
"""So many that writes after it are updates, not snapshots."""


@pytest.fixture
def shell() -> ShareCoordinatorShell:
    made = ShareCoordinatorShell(MemoryDisk().open_store("test"))
    made.run(initialize(start_offset=0))
    return made


def run(shell: ShareCoordinatorShell, operation: Operation) -> None:
    assert shell.run(operation).error_code == ErrorCode.NONE


def stored(shell: ShareCoordinatorShell) -> ShareGroupOffset:
    """What a read gives after a restart."""
    shell.restart(shell.store)
    state = shell.run(read()).state
    assert state is not None
    return state


@pytest.mark.parametrize("prepared", [(), MANY_RUNS], ids=["snapshots", "updates"])
def test_archiving_is_stored_and_given_back_until_it_is_archived(
    shell: ShareCoordinatorShell, prepared: tuple[tuple[int, int, int, int], ...]
) -> None:
    """KAFKA-20672: a leader that starts must find the records whose dead letters may not be stored yet."""
    run(shell, write(KEY, *prepared, (0, 9, AVAILABLE, 4)))
    run(shell, write(KEY, (2, 5, ARCHIVING, 5)))
    assert isinstance(shell.newest_records[-1], ShareUpdate if prepared else ShareSnapshot)
    below = batches((0, 1, AVAILABLE, 4), (2, 5, ARCHIVING, 5), (6, 9, AVAILABLE, 4))
    assert list(stored(shell).state_batches)[:3] == below
    run(shell, write(KEY, (2, 3, ARCHIVED, 5)))
    below = batches((0, 1, AVAILABLE, 4), (2, 3, ARCHIVED, 5), (4, 5, ARCHIVING, 5), (6, 9, AVAILABLE, 4))
    assert list(stored(shell).state_batches)[:4] == below
    run(shell, write(KEY, (2, 5, ARCHIVING, 5)))  # a repetition that comes late
    assert list(stored(shell).state_batches)[:4] == [*below[:1], *batches((2, 3, 4, 5), (4, 5, 3, 5)), below[3]]


def test_a_state_that_does_not_exist_is_refused(shell: ShareCoordinatorShell) -> None:
    for state in (1, 5, -1):
        result = shell.run(write(KEY, (2, 5, state, 1)))
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert str(state) in result.error_message


def test_archiving_in_the_bytes_of_records() -> None:
    """A state batch is two int64, the state as int8, the count as int16 and no tagged fields."""
    key = SharePartitionKey("orders", TOPIC_ID, 3)
    snapshot = ShareSnapshot(
        key=key,
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=5,
        delivery_complete_count=0,
        create_timestamp_ms=0,
        write_timestamp_ms=0,
        state_batches=batches((5, 6, ARCHIVING, 7)),
    )
    batch = "0000000000000005" + "0000000000000006" + "03" + "0007" + "00"
    data = encode_snapshot(snapshot)
    assert batch in data.hex()
    assert decode_snapshot(key, data) == snapshot
    update = ShareUpdate(key, 1, 1, 3, -1, 4, batches((5, 6, ARCHIVING, 7)))
    data = encode_update(update)
    assert batch in data.hex()
    assert decode_update(key, 1, data) == update


@pytest.mark.parametrize("prepared", [(), MANY_RUNS], ids=["snapshots", "updates"])
def test_the_summary_has_the_newest_delivery_complete_count(
    shell: ShareCoordinatorShell, prepared: tuple[tuple[int, int, int, int], ...]
) -> None:
    run(shell, write(KEY, *prepared, (3, 4, 2, 1), delivery_complete_count=2))
    run(shell, write(KEY, (6, 8, 2, 1), delivery_complete_count=5))
    assert isinstance(shell.newest_records[-1], ShareUpdate if prepared else ShareSnapshot)
    for _ in range(2):
        state = shell.run(summary()).state
        assert state is not None
        assert (state.start_offset, state.delivery_complete_count) == (0, 5)
        shell.restart(shell.store)
    run(shell, read(leader_epoch=7))  # another leader's first read is a record too
    state = shell.run(summary()).state
    assert state is not None
    assert (state.leader_epoch, state.delivery_complete_count) == (7, 5)
    run(shell, write(KEY, leader_epoch=7, start_offset=5, delivery_complete_count=3))
    assert stored(shell).delivery_complete_count == 3


@pytest.mark.parametrize(("start_offset", "count"), [(-1, -1), (0, 0), (40, 0)])
def test_a_new_start_offset_is_a_new_count(shell: ShareCoordinatorShell, start_offset: int, count: int) -> None:
    """KAFKA-20034: after offsets were altered the count is 0, so there is a lag; -1 only where nothing is known."""
    run(shell, write(KEY, (3, 4, 2, 1), delivery_complete_count=2))
    run(shell, initialize(state_epoch=2, start_offset=start_offset))
    state = shell.run(summary()).state
    assert state is not None
    assert (state.start_offset, state.delivery_complete_count) == (start_offset, count)
