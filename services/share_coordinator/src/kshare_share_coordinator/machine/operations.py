"""The operations of the machine, each for one share-partition, and their results.

A request that names many share-partitions is as many operations; the runner makes all of one turn durable at once.
`key_problem` and the machine's own checks together are the validation of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TOPIC_ID_LENGTH, SharePartitionKey
from kshare_core.leader_epochs import decode_leader_epochs, newest_leader_epoch
from kshare_core.states import MAX_STATE_EPOCH, PERSISTED_STATES, STATE_BATCHES_PER_WRITE_LIMIT
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch, is_canonical

GROUP_ID_BYTES_LIMIT = 32_767
"""The maximum of the length field of Kafka's record keys."""
STATE_BATCHES_PER_SHARE_PARTITION_LIMIT = 2 * STATE_BATCHES_PER_WRITE_LIMIT
"""Twice the batches of a full window, which a leader's writes can leave behind until its start offset moves."""
MAX_OFFSET = (1 << 63) - 2
"""The largest last offset that has an offset after it."""
MAX_DELIVERY_COUNT = (1 << 15) - 1


class InitializeState(NamedTuple):
    """InitializeShareGroupState (key 83) of one share-partition."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: int


class ReadState(NamedTuple):
    """ReadShareGroupState (key 84) of one share-partition; a `leader_epoch` of -1 only reads."""

    key: SharePartitionKey
    leader_epoch: int


class WriteState(NamedTuple):
    """WriteShareGroupState (key 85) of one share-partition; a `start_offset` of -1 leaves it as it is.

    `leader_epochs` is the log's leader epoch history as the writing leader has it; empty: no leader vouches for it.
    It ends with `leader_epoch`, unless it `has_brokers_epochs`: those of an existing cluster that has the log.
    """

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]
    leader_epochs: bytes = b""
    has_brokers_epochs: bool = False


class TruncateState(NamedTuple):
    """Replaces a share-partition's state by its part that the leader's log still has; see LogTruncation.

    `offset` is where the log and the state part, `start_offset` and `state_batches` are the whole state below it.
    """

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    offset: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]
    leader_epochs: bytes
    has_brokers_epochs: bool = False


class DeleteState(NamedTuple):
    """DeleteShareGroupState (key 86) of one share-partition."""

    key: SharePartitionKey


class ReadStateSummary(NamedTuple):
    """ReadShareGroupStateSummary (key 87) of one share-partition."""

    key: SharePartitionKey


class SnapshotColdState(NamedTuple):
    """Writes a snapshot where the share-partition still has exactly these updates (ShareCoordinatorShard's
    snapshotColdPartitions); otherwise it is not cold, and nothing happens."""

    key: SharePartitionKey
    snapshot_epoch: int
    update_count: int


Operation: TypeAlias = (
    InitializeState | ReadState | WriteState | TruncateState | DeleteState | ReadStateSummary | SnapshotColdState
)


class Result(NamedTuple):
    """Kafka's error and a sentence for it, or the state that a read asked for."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    state: ShareGroupOffset | None = None


def key_problem(key: SharePartitionKey) -> str | None:
    """The problem with the names in a request; None if they are valid."""
    if not key.group_id:
        return "the group id is empty"
    if len(key.group_id) > GROUP_ID_BYTES_LIMIT or len(key.group_id.encode()) > GROUP_ID_BYTES_LIMIT:
        return f"the group id is longer than {GROUP_ID_BYTES_LIMIT} bytes"
    if len(key.topic_id) != TOPIC_ID_LENGTH:
        return f"the topic id has {len(key.topic_id)} bytes, not {TOPIC_ID_LENGTH}"
    if key.partition < 0:
        return f"the partition is {key.partition}; it must be 0 or more"
    return None


def initialize_problem(operation: InitializeState) -> str | None:
    """The problem with an InitializeShareGroupState; None if it is valid."""
    if not 0 <= operation.state_epoch <= MAX_STATE_EPOCH:
        return f"the state epoch is {operation.state_epoch}; it must be from 0 to {MAX_STATE_EPOCH}"
    if operation.start_offset < -1:
        return f"the start offset is {operation.start_offset}; it must be -1 (not known yet) or more"
    return None


def write_problem(operation: WriteState) -> str | None:
    """The problem with a WriteShareGroupState; None if it is valid."""
    if operation.state_epoch > MAX_STATE_EPOCH:
        return f"the state epoch is {operation.state_epoch}; at most {MAX_STATE_EPOCH} is allowed"
    if operation.start_offset < -1:
        return f"the start offset is {operation.start_offset}; it must be -1 (unchanged) or more"
    if operation.delivery_complete_count < -1:
        count = operation.delivery_complete_count
        return f"the delivery complete count is {count}; it must be -1 (not known) or more"
    if len(operation.state_batches) > STATE_BATCHES_PER_WRITE_LIMIT:
        return f"{len(operation.state_batches)} state batches; at most {STATE_BATCHES_PER_WRITE_LIMIT} are allowed"
    for batch in operation.state_batches:
        problem = batch_problem(batch)
        if problem:
            return problem
    return None


def truncate_problem(operation: TruncateState) -> str | None:
    """The problem with a truncation; None if it is valid."""
    start_offset, offset = operation.start_offset, operation.offset
    if not 0 <= start_offset <= offset:
        return f"the start offset is {start_offset}; a state that is cut at {offset} starts at 0 to {offset}"
    if operation.delivery_complete_count < 0:
        return f"the delivery complete count is {operation.delivery_complete_count}; it must be 0 or more"
    if len(operation.state_batches) > STATE_BATCHES_PER_SHARE_PARTITION_LIMIT:
        count = len(operation.state_batches)
        return f"{count} state batches; at most {STATE_BATCHES_PER_SHARE_PARTITION_LIMIT} are allowed"
    for batch in operation.state_batches:
        problem = batch_problem(batch)
        if problem:
            return problem
        if batch.first_offset < start_offset or batch.last_offset >= offset:
            return f"the state batch {batch.first_offset}-{batch.last_offset} is not within {start_offset}-{offset}"
    if not is_canonical(operation.state_batches):
        return "the state batches are out of order or overlap"
    return leader_epochs_problem(operation) if operation.leader_epochs else "the leader epoch history is empty"


def leader_epochs_problem(operation: WriteState | TruncateState) -> str | None:
    """The problem with an operation's leader epoch history; None if it is valid or not given."""
    if not operation.leader_epochs:
        return None
    try:
        decode_leader_epochs(operation.leader_epochs)
    except ValueError as error:
        return str(error)
    newest = newest_leader_epoch(operation.leader_epochs)
    if operation.has_brokers_epochs or newest == operation.leader_epoch:
        return None
    return f"the leader epoch history ends with epoch {newest}, not {operation.leader_epoch}"


def batch_problem(batch: StateBatch) -> str | None:
    """The problem with one state batch; None if it is valid."""
    first_offset, last_offset, delivery_state, delivery_count = batch
    if not 0 <= first_offset <= last_offset <= MAX_OFFSET:
        return f"the state batch {first_offset}-{last_offset} is not a run of offsets"
    if delivery_state not in PERSISTED_STATES:
        return f"the state batch {first_offset}-{last_offset} has the state {delivery_state}; 0, 2, 3, 4 are allowed"
    if not 0 <= delivery_count <= MAX_DELIVERY_COUNT:
        return f"the state batch {first_offset}-{last_offset} has the delivery count {delivery_count}"
    return None
