"""The share coordinator's machine over a store, without event loop and network: the runner's steps, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.ports import KeyValueStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    ReadStateSummary,
    Result,
    WriteState,
)
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_store import StateStore

STATE_PARTITION_COUNT = 50
TOPIC_ID = bytes(range(1, 17))
KEY = SharePartitionKey("orders", TOPIC_ID, 0)
NOW_MS = 1_700_000_000_000


def batches(*runs: tuple[int, int, int, int]) -> list[StateBatch]:
    """State batches from (first offset, last offset, delivery state, delivery count)."""
    return [StateBatch(*run) for run in runs]


def initialize(key: SharePartitionKey = KEY, *, state_epoch: int = 1, start_offset: int = -1) -> InitializeState:
    return InitializeState(key, state_epoch, start_offset)


def write(
    key: SharePartitionKey = KEY,
    *runs: tuple[int, int, int, int],
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start_offset: int = -1,
    delivery_complete_count: int = -1,
) -> WriteState:
    return WriteState(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches(*runs))


def read(key: SharePartitionKey = KEY, leader_epoch: int = -1) -> ReadState:
    return ReadState(key, leader_epoch)


def summary(key: SharePartitionKey = KEY) -> ReadStateSummary:
    return ReadStateSummary(key)


def delete(key: SharePartitionKey = KEY) -> DeleteState:
    return DeleteState(key)


class ShareCoordinatorShell:
    """One machine over `store`; `restart` begins anew with what the store has."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        updates_per_snapshot: int = 500,
        cached_states_limit: int = 1000,
        cached_state_batches_limit: int = 100_000,
    ) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.cached_states_limit = cached_states_limit
        self.cached_state_batches_limit = cached_state_batches_limit
        self.restart(store)

    def restart(self, store: KeyValueStore) -> None:
        if not isinstance(store, ChecksummedStore):
            self.raw_store = store
            store = ChecksummedStore(store)
        self.store = store
        self.loaded: list[SharePartitionKey] = []
        self.state_store = StateStore(
            store=self.store, state_partition_of=lambda key: state_partition_of(key, STATE_PARTITION_COUNT)
        )
        self._build()

    def _build(self) -> None:
        self.machine = ShareCoordinatorMachine(
            load=self._load,
            snapshot_update_records_per_snapshot=self.updates_per_snapshot,
            cached_states_limit=self.cached_states_limit,
            cached_state_batches_limit=self.cached_state_batches_limit,
        )

    def _load(self, key: SharePartitionKey) -> Sequence[Record]:
        self.loaded.append(key)
        return self.state_store.load(key)

    def turn(self, *operations: Operation) -> list[Result]:
        """The results of operations that become durable together; StorageFailure where they could not."""
        records: list[Record] = []
        results: list[Result] = []
        for operation in operations:
            decision = self.machine.decide(operation, NOW_MS)
            for record in decision.records:
                self.machine.replay(record)
            records.extend(decision.records)
            results.append(decision.response)
        self.newest_records = records
        if records:
            try:
                self.state_store.append(records)
            except StorageFailure:
                self._build()
                raise
            self.machine.records_are_durable()
        return results

    def run(self, operation: Operation) -> Result:
        return self.turn(operation)[0]
