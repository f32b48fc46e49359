"""The share coordinator's rules again, offset by offset, without records, and the operations of random histories.

Tests compare the machine with it: a new operation needs a rule in `NaiveShareCoordinator.run` and a strategy in
`operations`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs, newest_leader_epoch
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    ReadStateSummary,
    SnapshotColdState,
    TruncateState,
    WriteState,
)
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch
from support.share_coordinator.shell import TOPIC_ID


@dataclass
class NaiveState:
    """What one share-partition must be."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(delivery count, delivery state) by offset."""
    leader_epochs: bytes = b""

    def copy(self) -> NaiveState:
        return NaiveState(
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.delivery_complete_count,
            dict(self.offsets),
            self.leader_epochs,
        )


class NaiveShareCoordinator:
    """The rules again, offset by offset, without records."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, NaiveState] = {}

    def copy(self) -> NaiveShareCoordinator:
        copied = NaiveShareCoordinator()
        copied.states = {key: state.copy() for key, state in self.states.items()}
        return copied

    def run(self, operation: Operation) -> tuple[ErrorCode, NaiveState | None]:
        state = self.states.get(operation.key)
        match operation:
            case InitializeState():
                return self._initialize(operation, state), None
            case WriteState():
                return self._write(operation, state), None
            case TruncateState():
                return self._truncate(operation, state), None
            case ReadState():
                return self._read(operation, state)
            case DeleteState():
                self.states.pop(operation.key, None)
                return ErrorCode.NONE, None
            case SnapshotColdState():
                return ErrorCode.NONE, None
            case ReadStateSummary():
                return ErrorCode.NONE, state.copy() if state else NaiveState(0, 0, -1, -1)

    def _initialize(self, operation: InitializeState, state: NaiveState | None) -> ErrorCode:
        if state and operation.state_epoch < state.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if state is None or operation.state_epoch > state.state_epoch:
            leader_epoch = state.leader_epoch if state else 0
            count = -1 if operation.start_offset == -1 else 0
            self.states[operation.key] = NaiveState(operation.state_epoch, leader_epoch, operation.start_offset, count)
        return ErrorCode.NONE

    def _read(self, operation: ReadState, state: NaiveState | None) -> tuple[ErrorCode, NaiveState | None]:
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if operation.leader_epoch not in (-1, state.leader_epoch):
            if operation.leader_epoch < state.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH, None
            state.leader_epoch = operation.leader_epoch
        return ErrorCode.NONE, state.copy()

    def _write(self, operation: WriteState, state: NaiveState | None) -> ErrorCode:
        if any(batch.first_offset > batch.last_offset for batch in operation.state_batches):
            return ErrorCode.INVALID_REQUEST
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if operation.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if operation.state_epoch < state.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        is_own = operation.leader_epochs and not operation.has_brokers_epochs
        if is_own and newest_leader_epoch(operation.leader_epochs) != operation.leader_epoch:
            return ErrorCode.INVALID_REQUEST
        if not 0 <= operation.start_offset < state.start_offset:
            state.delivery_complete_count = operation.delivery_complete_count
        state.leader_epochs = operation.leader_epochs
        state.leader_epoch, state.state_epoch = operation.leader_epoch, operation.state_epoch
        state.start_offset = max(state.start_offset, operation.start_offset)
        for batch in operation.state_batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                found = (batch.delivery_count, batch.delivery_state)
                state.offsets[offset] = max(state.offsets.get(offset, found), found)
        state.offsets = {offset: found for offset, found in state.offsets.items() if offset >= state.start_offset}
        return ErrorCode.NONE

    def _truncate(self, operation: TruncateState, state: NaiveState | None) -> ErrorCode:
        newest = newest_leader_epoch(operation.leader_epochs)
        if newest != operation.leader_epoch and not operation.has_brokers_epochs:
            return ErrorCode.INVALID_REQUEST
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if operation.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if operation.state_epoch < state.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if operation.state_epoch > state.state_epoch:
            return ErrorCode.INVALID_REQUEST
        if newest_leader_epoch(state.leader_epochs) >= newest:
            return ErrorCode.NONE
        state.leader_epoch, state.leader_epochs = operation.leader_epoch, operation.leader_epochs
        state.start_offset = operation.start_offset
        state.delivery_complete_count = operation.delivery_complete_count
        state.offsets = {
            offset: (batch.delivery_count, batch.delivery_state)
            for batch in operation.state_batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        return ErrorCode.NONE


def naive_form(state: ShareGroupOffset) -> NaiveState:
    offsets = {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in state.state_batches
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    return NaiveState(
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.delivery_complete_count,
        offsets,
        state.leader_epochs,
    )


# The operations of random histories

KEYS = [SharePartitionKey(group, TOPIC_ID, partition) for group in ("a", "b") for partition in (0, 1)]
keys = st.sampled_from(KEYS)
epochs = st.integers(0, 4)
start_offsets = st.integers(-1, 120)
state_batches = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 150),
    st.integers(-1, 25),
    st.sampled_from([0, 2, 3, 4]),
    st.integers(0, 3),
)
# Single offsets with gaps: makes states that are too large to be written as snapshots.
combs = st.builds(
    lambda first, state, count: [StateBatch(first + 3 * i, first + 3 * i, state, count) for i in range(20)],
    st.integers(0, 90),
    st.sampled_from([0, 2, 3, 4]),
    st.integers(0, 3),
)


def _history(leader_epoch: int, others: set[int]) -> bytes:
    """One that ends with `leader_epoch`; every epoch wrote ten records."""
    newest = sorted({leader_epoch, *(epoch for epoch in others if epoch < leader_epoch)})
    return encode_leader_epochs([EpochEntry(epoch, 10 * epoch) for epoch in newest])


histories = st.builds(_history, epochs, st.sets(epochs))
truncations = st.builds(
    lambda key, state_epoch, leader_epoch, others, start, length, state, count: TruncateState(
        key,
        state_epoch,
        leader_epoch,
        start + length + 5,
        start,
        0,
        [StateBatch(start + 1, start + 1 + length, state, count)],
        _history(leader_epoch, others),
    ),
    *(keys, epochs, epochs, st.sets(epochs), st.integers(0, 90), st.integers(0, 20)),
    *(st.sampled_from([0, 2, 3, 4]), st.integers(0, 3)),
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(InitializeState, keys, epochs, start_offsets),
    st.builds(ReadState, keys, st.integers(-1, 4)),
    st.builds(
        WriteState,
        keys,
        epochs,
        epochs,
        st.one_of(st.just(-1), start_offsets),
        st.integers(-1, 5),
        st.one_of(st.lists(state_batches, max_size=6), combs),
        st.one_of(st.just(b""), histories),
    ),
    truncations,
    st.builds(ReadStateSummary, keys),
)
