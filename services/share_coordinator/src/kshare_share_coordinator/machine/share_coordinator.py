"""The pure machine of the share coordinator (KIP-932, "Managing durable share-partition state").

States are loaded on demand: `load` gives the stored records of one share-partition (it must always give what was made
durable last), and they are replayed exactly like live ones. Loaded and changed states are cached, up to a limit
(`state_cache`); only durable states are evicted, which costs nothing but the time of the next look-up. The
shell calls `records_are_durable` after each append.

The rules, where they go beyond Kafka 4.3.1's ShareCoordinatorShard:
- An epoch that grows makes a ShareSnapshot, because a ShareUpdate cannot carry the state epoch (KAFKA-19337), and never
  stays in memory only.
- A write must carry the epochs; -1 does not turn fencing off as it does in Kafka. Only reads may use -1 (KAFKA-20694).
- An InitializeShareGroupState with the stored state epoch succeeds and changes nothing: it is a repetition, and a
  leader may have written since (KAFKA-19204). A greater one keeps the leader epoch, so that older leaders stay fenced.
- The start offset never moves back within a state epoch by a write: such a write is an old one that arrives late.
- A leader whose log has not the records that the state knows cuts the state (TruncateState), start offset included. It
  does so once, before it writes anything: where the state's leader epoch history names the newest epoch of the log
  already, the truncation is one that arrives late, and nothing happens. The epochs are those that the log's records
  carry; for a log in an existing cluster these are its brokers' (`has_brokers_epochs`), which nothing else compares.
- The leader epoch history of a state is that of the newest write; a write without one leaves the state without.
- Reading or writing an uninitialized share-partition is UNKNOWN_TOPIC_OR_PARTITION (the KIP's answer; Kafka 4.3.1 says
  INVALID_REQUEST, which would be the same as for a malformed request).
- The topic's existence is not checked: this node's view of the catalog may be older than its caller's.

A write is an update where that is smaller. It is a snapshot where the state that is left is small, which also saves the
next look-up a few rows; where the write covers the whole state; and after so many updates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_core.leader_epochs import newest_leader_epoch
from kshare_runtime.machine import Decision
from kshare_share_coordinator.machine.operations import (
    STATE_BATCHES_PER_SHARE_PARTITION_LIMIT,
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    Result,
    SnapshotColdState,
    TruncateState,
    WriteState,
    initialize_problem,
    leader_epochs_problem,
    truncate_problem,
    write_problem,
)
from kshare_share_coordinator.machine.share_group_offset import (
    DEFAULT_EPOCH,
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    CorruptRecord,
    LogTruncation,
    Record,
    ShareGroupOffset,
    ShareSnapshot,
    ShareTombstone,
    ShareUpdate,
    apply,
    next_snapshot_epoch,
)
from kshare_share_coordinator.machine.state_batches import StateBatch, combine_state_batches
from kshare_share_coordinator.machine.state_cache import StateCache

SMALL_STATE_BATCHES = 16
"""A state of so few batches is written as a snapshot: hardly longer than an update, and loaded with one look-up."""
CACHED_STATES_LIMIT = 300_000
CACHED_STATE_BATCHES_LIMIT = 2_000_000

NO_STATE = ShareGroupOffset(
    snapshot_epoch=DEFAULT_EPOCH,
    state_epoch=DEFAULT_EPOCH,
    leader_epoch=DEFAULT_EPOCH,
    start_offset=UNINITIALIZED_START_OFFSET,
    delivery_complete_count=UNKNOWN_DELIVERY_COMPLETE_COUNT,
    state_batches=(),
    update_count=0,
)
"""What ReadShareGroupStateSummary says about a share-partition without state, as Kafka does."""

ShareDecision = Decision[Record, Result, None]
_last_offset = itemgetter(1)


class ShareCoordinatorMachine:
    """Decides operations over the states of share-partitions; see the module's text.

    `snapshot_update_records_per_snapshot` is share.coordinator.snapshot.update.records.per.snapshot. The keys of
    operations are well formed (`operations.key_problem`).
    """

    def __init__(
        self,
        *,
        load: Callable[[SharePartitionKey], Sequence[Record]],
        snapshot_update_records_per_snapshot: int,
        cached_states_limit: int = CACHED_STATES_LIMIT,
        cached_state_batches_limit: int = CACHED_STATE_BATCHES_LIMIT,
    ) -> None:
        self._load = load
        self._updates_per_snapshot = snapshot_update_records_per_snapshot
        self._states = StateCache(states_limit=cached_states_limit, state_batches_limit=cached_state_batches_limit)
        self._not_durable: dict[SharePartitionKey, None] = {}

    def decide(self, command: Operation, now_ms: int) -> ShareDecision:
        """Never raises for a bad operation, a failing disk or a corrupt record: the result says it."""
        try:
            if isinstance(command, DeleteState):
                return self._delete(command)
            problem = self._problem(command)
            if problem:
                return _refuse(ErrorCode.INVALID_REQUEST, problem)
            return self._decide_with_state(command, self._state(command.key), now_ms)
        except CorruptRecord as problem:
            return _refuse(ErrorCode.CORRUPT_MESSAGE, str(problem))
        except StorageFailure as failure:
            return _refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"the state of {command.key} cannot be read: {failure}")

    def replay(self, record: Record) -> None:
        """`record` was decided just now, by the state that this machine has."""
        key = record.key
        if isinstance(record, ShareUpdate):
            state = apply(self._state(key), record)
        else:  # whatever was there, even if it cannot be read, ends here
            state = apply(None, record)
        self._not_durable[key] = None
        self._states.keep(key, state)

    def records_are_durable(self) -> None:
        """All records that were replayed until now can be loaded again, so their states may be dropped."""
        self._not_durable.clear()
        self._states.drop_beyond_limit(self._not_durable)

    def forget(self, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        """Drops states whose records were or will be changed elsewhere; all of them must be durable."""
        self._states.forget_where(is_forgotten)

    def _state(self, key: SharePartitionKey) -> ShareGroupOffset | None:
        try:
            return self._states.find(key)
        except KeyError:
            return self._load_state(key)

    def _load_state(self, key: SharePartitionKey) -> ShareGroupOffset | None:
        state = None
        for record in self._load(key):
            state = apply(state, record)
        self._states.keep(key, state)
        self._states.drop_beyond_limit(self._not_durable)
        return state

    def _problem(self, operation: Operation) -> str | None:
        if isinstance(operation, WriteState):
            return write_problem(operation)
        if isinstance(operation, TruncateState):
            return truncate_problem(operation)
        if isinstance(operation, InitializeState):
            return initialize_problem(operation)
        return None

    def _decide_with_state(self, operation: Operation, state: ShareGroupOffset | None, now_ms: int) -> ShareDecision:
        if isinstance(operation, InitializeState):
            return _initialize(operation, state, now_ms)
        if isinstance(operation, SnapshotColdState):
            return _snapshot_cold(operation, state, now_ms)
        if isinstance(operation, ReadState | WriteState | TruncateState):
            if state is None:
                return _refuse(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"share-partition {operation.key} is not initialized"
                )
            if isinstance(operation, ReadState):
                return _read(operation, state, now_ms)
            if isinstance(operation, TruncateState):
                return _truncate(operation, state, now_ms)
            return self._write(operation, state, now_ms)
        return Decision((), Result(state=state or NO_STATE))

    def _write(self, operation: WriteState, state: ShareGroupOffset, now_ms: int) -> ShareDecision:
        if operation.leader_epoch < state.leader_epoch:
            return _fenced_leader_epoch(operation.key, operation.leader_epoch, state.leader_epoch)
        if operation.state_epoch < state.state_epoch:
            return _fenced_state_epoch(operation.key, operation.state_epoch, state.state_epoch)
        is_known = operation.leader_epochs == state.leader_epochs
        if not is_known or newest_leader_epoch(operation.leader_epochs) != operation.leader_epoch:
            problem = leader_epochs_problem(operation)
            if problem:
                return _refuse(ErrorCode.INVALID_REQUEST, problem)
        most_batches = len(state.state_batches) + 2 * len(operation.state_batches)
        if most_batches > STATE_BATCHES_PER_SHARE_PARTITION_LIMIT:
            most_batches = len(_combined(operation, state))
            if most_batches > STATE_BATCHES_PER_SHARE_PARTITION_LIMIT:
                return _refuse(
                    ErrorCode.INVALID_REQUEST,
                    f"share-partition {operation.key} would have {most_batches} state batches; "
                    f"at most {STATE_BATCHES_PER_SHARE_PARTITION_LIMIT} are allowed",
                )
        if (
            operation.leader_epoch > state.leader_epoch
            or operation.state_epoch > state.state_epoch
            or operation.leader_epochs != state.leader_epochs
            or state.update_count >= self._updates_per_snapshot
            or _is_snapshot_small(operation, state)
        ):
            return Decision((_snapshot_of_write(operation, state, now_ms),), Result())
        return Decision((_update_of_write(operation, state),), Result())

    def _delete(self, operation: DeleteState) -> ShareDecision:
        key = operation.key
        try:
            state = self._state(key)
        except CorruptRecord:  # deleting is the way to be rid of it
            return Decision((ShareTombstone(key, None),), Result())
        if state is None:
            return Decision((), Result())
        return Decision((ShareTombstone(key, state.update_count),), Result())


def _refuse(error_code: ErrorCode, message: str) -> ShareDecision:
    return Decision((), Result(error_code, message))


def _fenced_leader_epoch(key: SharePartitionKey, given: int, stored: int) -> ShareDecision:
    text = f"the leader epoch {given} is older than {stored}, which share-partition {key} has"
    return _refuse(ErrorCode.FENCED_LEADER_EPOCH, text)


def _fenced_state_epoch(key: SharePartitionKey, given: int, stored: int) -> ShareDecision:
    text = f"the state epoch {given} is older than {stored}, which share-partition {key} has"
    return _refuse(ErrorCode.FENCED_STATE_EPOCH, text)


def _initialize(operation: InitializeState, state: ShareGroupOffset | None, now_ms: int) -> ShareDecision:
    if state is not None and operation.state_epoch < state.state_epoch:
        return _fenced_state_epoch(operation.key, operation.state_epoch, state.state_epoch)
    if state is not None and operation.state_epoch == state.state_epoch:
        return Decision((), Result())
    is_known = operation.start_offset != UNINITIALIZED_START_OFFSET
    snapshot = ShareSnapshot(
        key=operation.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch) if state else DEFAULT_EPOCH,
        state_epoch=operation.state_epoch,
        leader_epoch=state.leader_epoch if state else DEFAULT_EPOCH,
        start_offset=operation.start_offset,
        delivery_complete_count=0 if is_known else UNKNOWN_DELIVERY_COMPLETE_COUNT,
        create_timestamp_ms=now_ms,
        write_timestamp_ms=now_ms,
        state_batches=(),
        superseded_update_count=state.update_count if state else 0,
    )
    return Decision((snapshot,), Result())


def _read(operation: ReadState, state: ShareGroupOffset, now_ms: int) -> ShareDecision:
    result = Result(state=state)
    if operation.leader_epoch in (-1, state.leader_epoch):
        return Decision((), result)
    if operation.leader_epoch < state.leader_epoch:
        return _fenced_leader_epoch(operation.key, operation.leader_epoch, state.leader_epoch)
    snapshot = ShareSnapshot(
        key=operation.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch),
        state_epoch=state.state_epoch,
        leader_epoch=operation.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp_ms=now_ms,
        write_timestamp_ms=now_ms,
        state_batches=state.state_batches,
        superseded_update_count=state.update_count,
        leader_epochs=state.leader_epochs,
        truncation=state.truncation,
    )
    return Decision((snapshot,), result)


def _truncate(operation: TruncateState, state: ShareGroupOffset, now_ms: int) -> ShareDecision:
    if operation.leader_epoch < state.leader_epoch:
        return _fenced_leader_epoch(operation.key, operation.leader_epoch, state.leader_epoch)
    if operation.state_epoch < state.state_epoch:
        return _fenced_state_epoch(operation.key, operation.state_epoch, state.state_epoch)
    if operation.state_epoch > state.state_epoch:
        text = f"the state epoch {operation.state_epoch} is newer than {state.state_epoch}, which is stored"
        return _refuse(ErrorCode.INVALID_REQUEST, text)
    if newest_leader_epoch(state.leader_epochs) >= newest_leader_epoch(operation.leader_epochs):
        return Decision((), Result())
    end_offset = state.state_batches[-1].last_offset + 1 if state.state_batches else state.start_offset
    snapshot = ShareSnapshot(
        key=operation.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch),
        state_epoch=state.state_epoch,
        leader_epoch=operation.leader_epoch,
        start_offset=operation.start_offset,
        delivery_complete_count=operation.delivery_complete_count,
        create_timestamp_ms=now_ms,
        write_timestamp_ms=now_ms,
        state_batches=operation.state_batches,
        superseded_update_count=state.update_count,
        leader_epochs=operation.leader_epochs,
        truncation=LogTruncation(
            leader_epoch=operation.leader_epoch,
            offset=operation.offset,
            start_offset=state.start_offset,
            end_offset=max(end_offset, state.start_offset),
            timestamp_ms=now_ms,
        ),
    )
    return Decision((snapshot,), Result())


def _snapshot_cold(operation: SnapshotColdState, state: ShareGroupOffset | None, now_ms: int) -> ShareDecision:
    if state is None or (state.snapshot_epoch, state.update_count) != operation[1:]:
        return Decision((), Result())
    snapshot = ShareSnapshot(
        key=operation.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch),
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp_ms=state.create_timestamp_ms,
        write_timestamp_ms=now_ms,
        state_batches=state.state_batches,
        superseded_update_count=state.update_count,
        leader_epochs=state.leader_epochs,
        truncation=state.truncation,
    )
    return Decision((snapshot,), Result())


def _is_snapshot_small(operation: WriteState, state: ShareGroupOffset) -> bool:
    """Whether a snapshot is hardly larger than an update, or not larger at all."""
    start_offset = max(operation.start_offset, state.start_offset)
    kept = len(state.state_batches) - bisect_left(state.state_batches, start_offset, key=_last_offset)
    written = len(operation.state_batches)
    if kept + written <= SMALL_STATE_BATCHES:
        return True
    return written >= kept and len(_combined(operation, state)) <= len(
        combine_state_batches((), operation.state_batches, start_offset)
    )


def _combined(operation: WriteState, state: ShareGroupOffset) -> list[StateBatch]:
    start_offset = max(operation.start_offset, state.start_offset)
    return combine_state_batches(state.state_batches, operation.state_batches, start_offset)


def _delivery_complete_count(operation: WriteState, state: ShareGroupOffset) -> int:
    if -1 < operation.start_offset < state.start_offset:  # counted from a start offset that has moved on
        return state.delivery_complete_count
    return operation.delivery_complete_count


def _snapshot_of_write(operation: WriteState, state: ShareGroupOffset, now_ms: int) -> ShareSnapshot:
    return ShareSnapshot(
        key=operation.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch),
        state_epoch=operation.state_epoch,
        leader_epoch=operation.leader_epoch,
        start_offset=max(operation.start_offset, state.start_offset),
        delivery_complete_count=_delivery_complete_count(operation, state),
        create_timestamp_ms=now_ms,
        write_timestamp_ms=now_ms,
        state_batches=_combined(operation, state),
        superseded_update_count=state.update_count,
        leader_epochs=operation.leader_epochs,
        truncation=state.truncation,
    )


def _update_of_write(operation: WriteState, state: ShareGroupOffset) -> ShareUpdate:
    start_offset = max(operation.start_offset, state.start_offset)
    return ShareUpdate(
        key=operation.key,
        update_number=state.update_count + 1,
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=operation.leader_epoch,
        start_offset=start_offset if start_offset > state.start_offset else UNINITIALIZED_START_OFFSET,
        delivery_complete_count=_delivery_complete_count(operation, state),
        state_batches=combine_state_batches((), operation.state_batches, start_offset),
    )
