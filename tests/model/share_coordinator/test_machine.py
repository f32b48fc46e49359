"""Any interleaving of the RPCs, failed writes and restarts equals a dictionary with an entry for each offset."""

from __future__ import annotations

import tempfile
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
    ReadStateSummary,
    Result,
    WriteState,
)
from kshare_share_coordinator.machine.state_batches import StateBatch, is_canonical
from support.share_coordinator.naive import (
    KEYS,
    NaiveShareCoordinator,
    NaiveState,
    keys,
    naive_form,
    operations,
    state_batches,
)
from support.share_coordinator.shell import ShareCoordinatorShell


class ShareCoordinatorModel(RuleBasedStateMachine):
    """Over a MemoryStore, whose writes can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.naive = NaiveShareCoordinator()
        self.disk = MemoryDisk()
        self.shell = ShareCoordinatorShell(self.open_store(), updates_per_snapshot=3, cached_states_limit=2)

    def open_store(self) -> KeyValueStore:
        return self.disk.open_store("test")

    @initialize()
    def begin(self) -> None:
        self.turn([InitializeState(KEYS[0], 1, -1), InitializeState(KEYS[1], 1, 10)])

    @rule(turn=st.lists(operations, min_size=1, max_size=5))
    def turn(self, turn: list[Operation]) -> None:
        results = self.shell.turn(*turn)
        for operation, result in zip(turn, results, strict=True):
            self.compare(operation, result, *self.naive.run(operation))

    @rule(key=keys, batch_lists=st.lists(st.lists(state_batches, max_size=4), min_size=1, max_size=6))
    def leader_writes(self, key: SharePartitionKey, batch_lists: list[list[StateBatch]]) -> None:
        """Writes that are not fenced, one turn each, so that updates pile up."""
        state = self.naive.states.get(key)
        for batches in batch_lists if state else []:
            assert state is not None
            self.turn([WriteState(key, state.state_epoch, state.leader_epoch, -1, 0, batches)])

    @rule(key=keys)
    def delete(self, key: SharePartitionKey) -> None:
        self.turn([DeleteState(key)])

    @rule()
    def restart(self) -> None:
        self.shell.store.close()
        self.shell.restart(self.open_store())

    @rule(turn=st.lists(operations, min_size=1, max_size=5))
    def turn_on_a_full_disk(self, turn: list[Operation]) -> None:
        """Nothing of a turn stays that could not be written."""
        attempt = self.naive.copy()
        self.disk.fail_next_writes(1)
        try:
            results = self.shell.turn(*turn)
        except StorageFailure:
            return
        self.disk.fail_next_writes(0)
        for operation, result in zip(turn, results, strict=True):
            self.compare(operation, result, *attempt.run(operation))
        assert attempt.states == self.naive.states, "a change was answered without a write"

    @invariant()
    def every_summary_is_right(self) -> None:
        for key in KEYS:
            operation = ReadStateSummary(key)
            self.compare(operation, self.shell.run(operation), *self.naive.run(operation))

    def compare(self, operation: Operation, result: Result, error_code: ErrorCode, state: NaiveState | None) -> None:
        assert result.error_code == error_code, operation
        if state is None:
            assert result.state is None
            return
        assert result.state is not None
        if isinstance(operation, ReadState):  # the answer has no leader epoch
            state.leader_epoch = result.state.leader_epoch
        assert naive_form(result.state) == state
        assert is_canonical(result.state.state_batches)

    def teardown(self) -> None:
        self.shell.store.close()


class ShareCoordinatorOnRocksModel(ShareCoordinatorModel):
    """Over RocksDB: what was answered is there after every restart."""

    def open_store(self) -> KeyValueStore:
        if not hasattr(self, "directory"):
            self.directory = tempfile.TemporaryDirectory()
        return RocksStore(Path(self.directory.name) / "store")

    def turn_on_a_full_disk(self, turn: list[Operation]) -> None:
        """Not a rule here: RocksDB's disk cannot be told to fail."""

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


@pytest.mark.parametrize(
    ("model", "examples", "steps"), [(ShareCoordinatorModel, 150, 30), (ShareCoordinatorOnRocksModel, 8, 15)]
)
def test_any_interleaving_equals_the_naive_model(model: type[ShareCoordinatorModel], examples: int, steps: int) -> None:
    case = model.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    case().runTest()
