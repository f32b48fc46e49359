"""A replay of `__share_group_state` gives the stored state: after any history, and for a reader that follows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyValueStore
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    Result,
    WriteState,
)
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_store import family_of
from kshare_share_coordinator.state_topic import is_state_topic_key
from kshare_wire.record_reading import OpenedRecord
from support.share_coordinator.shell import TOPIC_ID
from support.share_coordinator.state_topic import StateTopicShell, read_state_partition, replayed

KEYS = [SharePartitionKey(group, TOPIC_ID, partition) for group in ("a", "b") for partition in (0, 1)]
STATE_PARTITION_COUNT = 2
"""So that share-partitions share a state partition."""
DELETE_RETENTION_MS = 50

keys = st.sampled_from(KEYS)
epochs = st.integers(0, 3)
state_batches = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 150),
    st.integers(0, 25),
    st.sampled_from([0, 2, 3, 4]),
    st.integers(0, 3),
)
# Single offsets with gaps: makes states that are too large to be written as snapshots.
combs = st.builds(
    lambda first, count: [StateBatch(first + 3 * i, first + 3 * i, 2, count) for i in range(20)],
    st.integers(0, 90),
    st.integers(0, 3),
)
writes = st.builds(
    WriteState, keys, epochs, epochs, st.integers(-1, 120), st.integers(-1, 5), combs | st.lists(state_batches)
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(InitializeState, keys, epochs, st.integers(-1, 120)),
    st.builds(ReadState, keys, epochs),
    writes,
    writes,
    st.builds(DeleteState, keys),
)


def family(key: SharePartitionKey) -> str:
    return family_of(KEYS.index(key) % STATE_PARTITION_COUNT)


FAMILIES = [family_of(number) for number in range(STATE_PARTITION_COUNT)]


class Shell(StateTopicShell):
    """Places share-partitions by their number in KEYS."""

    def restart(self, store: KeyValueStore) -> None:
        super().restart(store)
        self.state_store._state_partition_of = lambda key: KEYS.index(key) % STATE_PARTITION_COUNT


class Follower:
    """A consumer of a state partition that reads on from where it is."""

    def __init__(self) -> None:
        self.position = 0
        self.records: list[OpenedRecord] = []

    def read(self, shell: Shell, family: str) -> None:
        fresh = read_state_partition(shell.index, family, self.position)
        self.records += fresh
        self.position = shell.index.next_offset(family)


def contents(records: Iterable[OpenedRecord]) -> Iterable[tuple[bytes, bytes | None]]:
    return ((record.key or b"", record.value) for record in records)


class StateTopicModel(RuleBasedStateMachine):
    @initialize(updates_per_snapshot=st.sampled_from([1, 3, 500]), on_disk=st.booleans())
    def start(self, updates_per_snapshot: int, on_disk: bool) -> None:
        self.folder = tempfile.TemporaryDirectory() if on_disk else None
        self.disk = MemoryDisk()
        self.store = self.open_store()
        self.shell = Shell(self.store, updates_per_snapshot=updates_per_snapshot)
        self.followers = {family: Follower() for family in FAMILIES}
        self.ends = dict.fromkeys(FAMILIES, 0)

    def open_store(self) -> KeyValueStore:
        if self.folder is None:
            return self.disk.open_store("share-coordinator")
        return RocksStore(Path(self.folder.name) / "store")

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            if self.folder is not None:
                self.folder.cleanup()

    @rule(turn=st.lists(operations, min_size=1, max_size=5))
    def operate(self, turn: list[Operation]) -> None:
        self.shell.turn(*turn)

    @rule(turn=st.lists(operations, min_size=1, max_size=5))
    def fail_to_write(self, turn: list[Operation]) -> None:
        if self.folder is not None:
            return
        self.disk.fail_next_writes(1)
        try:
            self.shell.turn(*turn)
        except StorageFailure:
            return
        self.disk.fail_next_writes(0)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open_store()
        self.shell.restart(self.store)

    @rule(step_ms=st.integers(-30, 40))
    def time_passes(self, step_ms: int) -> None:
        self.shell.now_ms += step_ms

    @rule(limit=st.integers(1, 3))
    def prune(self, limit: int) -> None:
        for family in FAMILIES:
            self.shell.index.prune(family, before_ms=self.shell.now_ms - DELETE_RETENTION_MS, limit=limit)

    @rule(family=st.sampled_from(FAMILIES))
    def follow(self, family: str) -> None:
        """Tombstones that were pruned between are the one thing that a follower may miss, as in Kafka."""
        self.followers[family].read(self.shell, family)

    @invariant()
    def the_topic_is_the_state(self) -> None:
        if not hasattr(self, "shell"):
            return
        states: dict[SharePartitionKey, ShareGroupOffset] = {}
        for family in FAMILIES:
            records = read_state_partition(self.shell.index, family)
            states.update(replayed(contents(records)))
            self.check_rows(family, records)
        for key in KEYS:
            result: Result = self.shell.run(ReadState(key, -1))
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                assert key not in states
            else:
                assert result.state is not None
                stored = result.state._replace(state_batches=list(result.state.state_batches))
                assert states[key]._replace(state_batches=list(states[key].state_batches)) == stored

    def check_rows(self, family: str, records: list[OpenedRecord]) -> None:
        """Nothing is left of what was superseded, and no offset was given twice."""
        rows = [key for key, _ in self.store.scan(family, b"")]
        by_letter = {
            letter: sum(is_state_topic_key(key) and key[1:2] == letter for key in rows) for letter in (b"o", b"k")
        }
        assert by_letter == {b"o": len(records), b"k": len(records)}
        live = sum(not is_state_topic_key(key) for key in rows)
        assert live == sum(record.value is not None for record in records)
        end = self.shell.index.next_offset(family)
        assert end >= self.ends[family]
        assert end == (records[-1].offset + 1 if records else 0)
        self.ends[family] = end

    @invariant()
    def followers_are_right(self) -> None:
        if not hasattr(self, "shell"):
            return
        for family, follower in self.followers.items():
            if follower.position != self.shell.index.next_offset(family):
                continue
            whole = replayed(contents(read_state_partition(self.shell.index, family)))
            followed = replayed(contents(follower.records))
            assert {key: followed[key] for key in whole} == whole


TestStateTopic = pytest.mark.timeout(120)(StateTopicModel.TestCase)
TestStateTopic.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
