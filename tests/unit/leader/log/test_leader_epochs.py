"""The leader epoch history of a log: durable with the first batch of an epoch, and found in batches without rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import (
    LEADER_EPOCHS_LIMIT,
    EpochEntry,
    common_end_offset,
    decode_leader_epochs,
    encode_leader_epochs,
    newest_leader_epoch,
)
from kshare_leader.log import keys
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.tail import TailCache
from kshare_leader.log.topic_settings import topic_settings
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from support.leader.log.leader_logs import BROKER
from support.wire.record_building import build_batch, checked

KEY = TopicPartition(bytes(range(16)), 0)
PREFIX = keys.partition_prefix(KEY)


def opened(store: MemoryStore, leader_epoch: int) -> PartitionLog:
    return PartitionLog(
        key=KEY,
        store=store,
        tails=TailCache(node_limit_bytes=1 << 20),
        settings=topic_settings({}, BROKER),
        leader_epoch=leader_epoch,
    )


def append(log: PartitionLog, store: MemoryStore, batches: int = 1) -> None:
    pending = log.begin(0)
    for _ in range(batches):
        log.prepare(checked(build_batch([b"x"] * 3), log.settings, 0), 0, pending)
    store.write(list(log.writes(pending)))
    log.commit(pending)


def test_an_epoch_is_durable_with_its_first_batch_and_not_before() -> None:
    store = MemoryDisk().open_store("leader")
    append(opened(store, 3), store, 2)
    opened(store, 4)
    log = opened(store, 5)
    assert log.leader_epochs == [EpochEntry(3, 0), EpochEntry(5, 6)]
    append(log, store)
    append(log, store)
    assert opened(store, 9).leader_epochs == [EpochEntry(3, 0), EpochEntry(5, 6), EpochEntry(9, 12)]
    assert newest_leader_epoch(opened(store, 9).encoded_leader_epochs()) == 9


def test_a_log_that_an_older_version_wrote_finds_its_epochs_in_the_batches() -> None:
    store = MemoryDisk().open_store("leader")
    for leader_epoch in (2, 3, 7):
        append(opened(store, leader_epoch), store, 5)
    known = list(opened(store, 8).leader_epochs)
    store.delete_range(keys.LEADER_EPOCHS, PREFIX, PREFIX + bytes([255] * 9))
    assert opened(store, 8).leader_epochs == known
    # Rows of the first epochs only: an older version went on for a while.
    store.write([Write(keys.LEADER_EPOCHS, keys.long_key(PREFIX, 2), keys.offset_value(0))])
    log = opened(store, 8)
    assert log.leader_epochs == known
    append(log, store)
    assert len(list(store.scan(keys.LEADER_EPOCHS, PREFIX))) == 4


def test_epochs_below_the_start_of_the_log_are_removed() -> None:
    store = MemoryDisk().open_store("leader")
    for leader_epoch in (2, 3, 7):
        append(opened(store, leader_epoch), store, 5)
    log = opened(store, 8)
    for start_offset, left in ((14, [2, 3, 7]), (15, [3, 7]), (45, [7])):
        change = log.plan_start(start_offset)
        assert change is not None
        store.write(change.writes)
        log.commit_start(change)
        assert [keys.number_of(key) for key, _ in store.scan(keys.LEADER_EPOCHS, PREFIX)] == left
        assert [entry.leader_epoch for entry in log.leader_epochs] == [*left, 8]
    assert [entry.leader_epoch for entry in opened(store, 9).leader_epochs] == [7, 9]


def test_a_log_is_not_led_in_an_epoch_before_that_of_its_batches() -> None:
    store = MemoryDisk().open_store("leader")
    append(opened(store, 6), store)
    with pytest.raises(StorageFailure, match="leader epoch 5 is older than leader epoch 6 of its newest batches"):
        opened(store, 5)


def test_the_newest_entries_are_encoded() -> None:
    entries = [EpochEntry(epoch, 10 * epoch) for epoch in range(1, 50)]
    assert decode_leader_epochs(encode_leader_epochs(entries)) == entries[-LEADER_EPOCHS_LIMIT:]
    unordered = encode_leader_epochs([EpochEntry(2, 0), EpochEntry(1, 5)])
    for bad in (b"x", unordered, bytes(12 * (LEADER_EPOCHS_LIMIT + 1))):
        with pytest.raises(ValueError, match="a leader epoch history"):
            decode_leader_epochs(bad)


@given(st.lists(st.integers(1, 5), max_size=6), st.lists(st.integers(1, 5), max_size=6), st.integers(0, 20))
def test_what_two_copies_have_in_common_is_their_longest_common_beginning(
    before: list[int], after: list[int], kept: int
) -> None:
    """Both begin as one log; then one goes on in odd epochs, the other in even ones, from where each was cut."""
    shared = [(epoch, offset) for epoch, count in enumerate(before, 1) for offset in range(count)]
    records = [epoch for epoch, _ in shared]
    known = [*records, *[len(before) + 1 for _ in after]]
    log = [*records[:kept], *[len(before) + 2 for _ in after]]
    expected = 0
    while expected < min(len(known), len(log)) and known[expected] == log[expected]:
        expected += 1
    assert common_end_offset(_history(known), _history(log), len(log)) == expected


def _history(records: list[int]) -> list[EpochEntry]:
    """Of a log whose record at each offset was written in the epoch that stands there."""
    return [
        EpochEntry(epoch, offset) for offset, epoch in enumerate(records) if offset == 0 or records[offset - 1] != epoch
    ]
