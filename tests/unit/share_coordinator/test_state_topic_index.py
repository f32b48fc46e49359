"""Offsets of the records of a state partition: which there are, how they are read, and when they go."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, ShareSnapshot
from kshare_share_coordinator.records import SHARE_SNAPSHOT, SHARE_UPDATE, decode_key, decode_snapshot, decode_update
from kshare_share_coordinator.state_store import family_of
from kshare_share_coordinator.state_topic import BATCH_BYTES_LIMIT, OFFSETS_SCANNED_AT_ONCE, is_state_topic_key
from kshare_wire.record_batches import read_header
from support.share_coordinator.shell import (
    KEY,
    NOW_MS,
    STATE_PARTITION_COUNT,
    TOPIC_ID,
    batches,
    delete,
    initialize,
    write,
)
from support.share_coordinator.state_topic import StateTopicShell, read_state_partition, replayed

FAMILY = family_of(state_partition_of(KEY, STATE_PARTITION_COUNT))
NEIGHBOUR = next(
    key
    for key in (SharePartitionKey("orders", TOPIC_ID, partition) for partition in range(1, 1000))
    if state_partition_of(key, STATE_PARTITION_COUNT) == state_partition_of(KEY, STATE_PARTITION_COUNT)
)
COMB = [(first, first, 2, 1) for first in range(0, 60, 2)]
"""So many runs that the next write is an update."""
DAY_MS = 86_400_000


def shell() -> StateTopicShell:
    return StateTopicShell(MemoryDisk().open_store("share-coordinator"))


def offsets(shell: StateTopicShell) -> list[int]:
    return [record.offset for record in shell.records(KEY)]


def own_rows(shell: StateTopicShell, letter: bytes) -> list[bytes]:
    """Keys of the index with this letter after the first byte."""
    rows = [key for key, _ in shell.store.scan(FAMILY, b"")]
    return [key for key in rows if is_state_topic_key(key) and key[1:2] == letter]


def test_an_empty_state_partition_ends_at_0() -> None:
    one = shell()
    assert one.index.next_offset(FAMILY) == 0
    assert one.records(KEY) == []
    assert one.index.newest(FAMILY) is None
    assert one.index.first_since(FAMILY, 0) is None


def test_a_record_is_what_kafka_would_have_written() -> None:
    one = shell()
    one.turn(initialize(start_offset=7))
    one.turn(write(KEY, (7, 9, 2, 1), delivery_complete_count=3))
    (record,) = one.records(KEY)
    assert (record.offset, record.timestamp_ms, record.headers) == (1, NOW_MS, [])
    assert record.key is not None and record.value is not None
    assert decode_key(record.key) == (SHARE_SNAPSHOT, KEY)
    assert decode_snapshot(KEY, record.value) == ShareSnapshot(
        KEY, 1, 1, 0, 7, 3, NOW_MS, NOW_MS, batches((7, 9, 2, 1))
    )


def test_updates_stand_behind_their_snapshot_until_the_next_one() -> None:
    one = StateTopicShell(MemoryDisk().open_store("share-coordinator"), updates_per_snapshot=3)
    one.turn(initialize(start_offset=0))
    one.turn(write(KEY, *COMB))
    for first in (100, 102, 104):
        one.turn(write(KEY, (first, first, 2, 1)))
    records = one.records(KEY)
    assert [record.offset for record in records] == [1, 2, 3, 4]
    assert [decode_key(record.key or b"")[0] for record in records] == [SHARE_SNAPSHOT] + [SHARE_UPDATE] * 3
    assert decode_update(KEY, 2, records[2].value or b"").state_batches == batches((102, 102, 2, 1))
    one.turn(write(KEY, (106, 106, 2, 1)))
    assert offsets(one) == [5]
    assert len(own_rows(one, b"o")) == len(own_rows(one, b"k")) == 1


def test_records_of_one_turn_have_offsets_in_their_order() -> None:
    one = shell()
    one.turn(initialize(), initialize(NEIGHBOUR), write(KEY, (1, 1, 2, 1)), write(KEY, (2, 2, 2, 1)))
    records = one.records(KEY)
    assert [(record.offset, decode_key(record.key or b"")[1]) for record in records] == [(1, NEIGHBOUR), (3, KEY)]
    assert len(own_rows(one, b"o")) == 2


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_remembered_and_what_is_read_again_are_the_same(is_restarted: bool) -> None:
    one = shell()
    one.turn(initialize(), initialize(NEIGHBOUR))
    one.turn(write(KEY, *COMB))
    one.turn(write(KEY, (100, 100, 2, 1)))
    if is_restarted:
        one.restart(one.store)
    one.turn(write(KEY, (102, 102, 2, 1)))
    assert offsets(one) == [1, 2, 3, 4]
    one.turn(initialize(state_epoch=2))
    assert offsets(one) == [1, 5]


def test_a_failed_write_takes_no_offset() -> None:
    disk = MemoryDisk()
    one = StateTopicShell(disk.open_store("share-coordinator"))
    one.turn(initialize())
    disk.fail_next_writes(1)
    with pytest.raises(StorageFailure):
        one.turn(write(KEY, (1, 1, 2, 1)))
    assert offsets(one) == [0]
    one.turn(write(KEY, (1, 1, 2, 1)))
    assert offsets(one) == [1]


def test_a_tombstone_ends_everything_and_a_new_beginning_ends_the_tombstone() -> None:
    one = shell()
    one.turn(initialize())
    one.turn(write(KEY, *COMB))
    one.turn(write(KEY, (100, 100, 2, 1)))
    one.turn(delete())
    (record,) = one.records(KEY)
    assert (record.offset, record.value) == (3, None)
    assert decode_key(record.key or b"") == (SHARE_SNAPSHOT, KEY)
    one.turn(initialize())
    (record,) = one.records(KEY)
    assert (record.offset, record.value is None) == (4, False)


def test_tombstones_go_after_their_time_but_the_newest_record_stays() -> None:
    one = shell()
    one.turn(initialize(), initialize(NEIGHBOUR))
    one.turn(delete())
    one.now_ms += 10
    one.turn(delete(NEIGHBOUR))
    assert offsets(one) == [2, 3]
    assert one.index.prune(FAMILY, before_ms=NOW_MS, limit=100) == 0
    assert offsets(one) == [2, 3]
    assert one.index.prune(FAMILY, before_ms=one.now_ms + DAY_MS, limit=100) == 1
    assert offsets(one) == [3]
    one.restart(one.store)
    assert one.index.next_offset(FAMILY) == 4
    one.turn(initialize())
    assert one.index.prune(FAMILY, before_ms=one.now_ms + DAY_MS, limit=100) == 1
    assert offsets(one) == [4]
    assert (len(own_rows(one, b"o")), len(own_rows(one, b"k")), own_rows(one, b"t")) == (1, 1, [])


def test_a_tombstone_that_was_superseded_is_pruned_without_a_trace() -> None:
    one = shell()
    for _ in range(5):
        one.turn(initialize())
        one.turn(delete())
    one.turn(initialize())
    assert one.index.prune(FAMILY, before_ms=0, limit=2) == 2
    assert one.index.prune(FAMILY, before_ms=0, limit=100) == 3
    assert offsets(one) == [10]
    assert own_rows(one, b"t") == []


def test_pruning_that_fails_changes_nothing() -> None:
    disk = MemoryDisk()
    one = StateTopicShell(disk.open_store("share-coordinator"))
    one.turn(initialize(), initialize(NEIGHBOUR))
    one.turn(delete())
    one.turn(initialize(NEIGHBOUR, state_epoch=2))
    disk.fail_next_writes(1)
    with pytest.raises(StorageFailure):
        one.index.prune(FAMILY, before_ms=NOW_MS + DAY_MS, limit=100)
    assert offsets(one) == [2, 3]
    one.index.prune(FAMILY, before_ms=NOW_MS + DAY_MS, limit=100)
    assert offsets(one) == [3]


def test_time_never_goes_back_and_can_be_looked_up() -> None:
    one = shell()
    keys = [
        key
        for key in (SharePartitionKey("orders", TOPIC_ID, partition) for partition in range(3000))
        if state_partition_of(key, STATE_PARTITION_COUNT) == state_partition_of(KEY, STATE_PARTITION_COUNT)
    ][:20]
    for at, key in enumerate(keys):
        one.now_ms = NOW_MS + (at // 2) * 100 - (5_000 if at == 7 else 0)
        one.turn(initialize(key))
    one.turn(initialize(keys[4], state_epoch=2))  # a gap at offset 4
    wanted = [(record.offset, record.timestamp_ms) for record in one.records(KEY)]
    assert wanted[6] == (7, NOW_MS + 300)
    for timestamp_ms in range(NOW_MS - 50, NOW_MS + 1_200, 50):
        found = one.index.first_since(FAMILY, timestamp_ms)
        expected = next((each for each in wanted if each[1] >= timestamp_ms), None)
        assert (found and (found.offset, found.timestamp_ms)) == expected
    newest = one.index.newest(FAMILY)
    assert newest is not None and (newest.offset, newest.timestamp_ms) == (18, NOW_MS + 900)


def test_batches_are_not_larger_than_asked_but_for_one_record() -> None:
    one = shell()
    for partition in range(2_000):
        one.turn(initialize(SharePartitionKey("a" * 100, TOPIC_ID, partition)))
    families = {family_of(number): None for number in range(STATE_PARTITION_COUNT)}
    family = max(families, key=one.index.next_offset)
    batch, next_offset = one.index.read_batch(family, 0, 1_000)
    assert len(batch) <= 1_000 and 2 <= read_header(batch).record_count == next_offset
    batch, next_offset = one.index.read_batch(family, 3, 1)
    assert (read_header(batch).base_offset, read_header(batch).record_count, next_offset) == (3, 1, 4)


def test_a_large_topic_comes_in_batches_of_64_kib() -> None:
    one = shell()
    for partition in range(20):
        key = SharePartitionKey("orders", TOPIC_ID, partition)
        one.turn(initialize(key, start_offset=0))
        one.turn(write(key, *[(first, first, 2, 1) for first in range(0, 1_000, 2)]))
    family = max((family_of(number) for number in range(STATE_PARTITION_COUNT)), key=one.index.next_offset)
    batch, _ = one.index.read_batch(family, 0, 1 << 30)
    assert len(batch) <= BATCH_BYTES_LIMIT


def test_a_reader_steps_over_a_wide_gap() -> None:
    one = shell()
    one.turn(initialize(NEIGHBOUR))
    count = OFFSETS_SCANNED_AT_ONCE + 500
    for first in range(0, count, 500):
        one.turn(*[initialize(state_epoch=first + epoch) for epoch in range(1, 501)])
    batch, next_offset = one.index.read_batch(FAMILY, 0, 1 << 20)
    assert (read_header(batch).last_offset, next_offset) == (0, OFFSETS_SCANNED_AT_ONCE)
    assert one.index.read_batch(FAMILY, 1, 1 << 20) == (b"", OFFSETS_SCANNED_AT_ONCE + 1)
    assert offsets(one) == [0, count]


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kshare_share_coordinator.state_topic.CACHED_OFFSETS_LIMIT", 1)
    one = shell()
    one.turn(initialize(), initialize(NEIGHBOUR))
    for epoch in range(2, 6):
        one.turn(initialize(state_epoch=epoch))
        one.turn(initialize(NEIGHBOUR, state_epoch=epoch))
    assert offsets(one) == [8, 9]
    assert len(own_rows(one, b"o")) == len(own_rows(one, b"k")) == 2


@pytest.mark.parametrize("letter", [b"o", b"k"])
def test_a_damaged_row_of_the_index_does_not_prevent_writes(letter: bytes) -> None:
    disk = MemoryDisk()
    store = disk.open_store("share-coordinator")
    one = StateTopicShell(store)
    one.turn(initialize())
    one.turn(write(KEY, *COMB))
    one.turn(write(KEY, (100, 100, 2, 1)))
    for row in own_rows(one, letter):
        store.write([Write(FAMILY, row, b"damaged")])
    one.restart(store)
    with pytest.raises(StorageFailure):
        one.records(KEY)
    assert one.run(write(KEY, (102, 102, 2, 1))).error_code == ErrorCode.NONE
    assert one.run(initialize(state_epoch=2, start_offset=5)).error_code == ErrorCode.NONE
    assert one.run(initialize(NEIGHBOUR)).error_code == ErrorCode.NONE
    records = one.records(KEY)
    states = replayed((record.key or b"", record.value) for record in records)
    assert states.keys() == {KEY, NEIGHBOUR} and states[KEY].start_offset == 5
    assert [record.offset for record in records] == [4, 5]


def test_a_record_that_is_missing_is_told() -> None:
    one = shell()
    one.turn(initialize())
    (record_row,) = [key for key, _ in one.store.scan(FAMILY, b"") if not is_state_topic_key(key)]
    one.store.write([Write(FAMILY, record_row, None)])
    with pytest.raises(CorruptRecord, match="offset 0 of a missing record"):
        read_state_partition(one.index, FAMILY)


def test_a_share_partition_that_cannot_be_read_is_gone_from_the_topic_when_it_is_deleted() -> None:
    store = MemoryDisk().open_store("share-coordinator")
    one = StateTopicShell(store)
    one.turn(initialize())
    one.turn(write(KEY, *COMB))
    one.turn(write(KEY, (100, 100, 2, 1)))
    for row, _ in list(store.scan(FAMILY, b"")):
        if not is_state_topic_key(row):
            store.write([Write(FAMILY, row, b"damaged")])
    one.restart(store)
    assert one.run(delete()).error_code == ErrorCode.NONE
    (record,) = one.records(KEY)
    assert (record.offset, record.value) == (3, None)


def test_names_that_look_like_the_index_do_not_meet_it() -> None:
    one = shell()
    names = ["\x80o", "\u0080", "o", "k" * 32_767, "ÿÿ"]
    keys = [SharePartitionKey(name, TOPIC_ID, 0) for name in names]
    for key in keys:
        assert one.run(initialize(key, start_offset=4)).error_code == ErrorCode.NONE
    for key in keys:
        assert key in replayed((record.key or b"", record.value) for record in one.records(key))
