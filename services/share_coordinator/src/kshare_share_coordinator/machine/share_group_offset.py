"""The durable state of one share-partition, the records that make it up, and how a record changes it.

A ShareSnapshot holds the whole state and starts a new snapshot epoch. ShareUpdates add to the snapshot of the same
snapshot epoch and are numbered from 1. A tombstone ends the state. `apply` is the only place where a record becomes
state, for live commands and for records that were read from the disk alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.state_batches import StateBatch, combine_state_batches

UNINITIALIZED_START_OFFSET = -1
"""The leader shall find the start offset by share.auto.offset.reset."""
UNKNOWN_DELIVERY_COMPLETE_COUNT = -1
DEFAULT_EPOCH = 0
MAX_EPOCH = (1 << 31) - 1


class CorruptRecord(Exception):
    """A stored record cannot be read, or does not fit to the one before it; the text names its key."""


class LogTruncation(NamedTuple):
    """A leader found other records in the log than those that the state knew, and cut the state there."""

    leader_epoch: int
    offset: int
    """The first offset whose record is not the one that the state knew, or that the log does not have."""
    start_offset: int
    """The share-partition start offset before."""
    end_offset: int
    """Behind the last offset that the state knew before."""
    timestamp_ms: int


class ShareGroupOffset(NamedTuple):
    """The state of one share-partition (Kafka's ShareGroupOffset). `state_batches` is canonical and never changed."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]
    update_count: int
    """ShareUpdates since the snapshot."""
    create_timestamp_ms: int = 0
    """When the snapshot was made; a snapshot of a cold share-partition keeps it, as in Kafka."""
    leader_epochs: bytes = b""
    """The leader epoch history of the log whose records the state is about (`kshare_core.leader_epochs`); empty where
    no leader vouched for it, as after InitializeShareGroupState or a write through Kafka's key 85."""
    truncation: LogTruncation | None = None
    """The newest one since the state was initialized."""


class ShareSnapshot(NamedTuple):
    """The whole state of a share-partition (ShareSnapshotValue); removes the updates of the snapshot before it."""

    key: SharePartitionKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp_ms: int
    write_timestamp_ms: int
    state_batches: Sequence[StateBatch]
    superseded_update_count: int = 0
    """How many updates lie on the disk for the snapshot that this one replaces; not part of Kafka's record."""
    leader_epochs: bytes = b""
    truncation: LogTruncation | None = None


class ShareUpdate(NamedTuple):
    """A change of a share-partition's state (ShareUpdateValue); a `start_offset` of -1 leaves it as it is."""

    key: SharePartitionKey
    update_number: int
    """1 for the first update of its snapshot; not part of Kafka's record."""
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]


class ShareTombstone(NamedTuple):
    """The end of a share-partition's state."""

    key: SharePartitionKey
    update_count: int | None
    """How many updates lie on the disk; None where that is not known because the records cannot be read."""


Record: TypeAlias = ShareSnapshot | ShareUpdate | ShareTombstone


def next_snapshot_epoch(snapshot_epoch: int) -> int:
    """After the largest number that the record can carry, it starts again at 0: updates only ask for equality."""
    return 0 if snapshot_epoch == MAX_EPOCH else snapshot_epoch + 1


def apply(state: ShareGroupOffset | None, record: Record) -> ShareGroupOffset | None:
    """The state after a record, None after a tombstone; CorruptRecord for an update that does not fit `state`."""
    if isinstance(record, ShareSnapshot):
        return ShareGroupOffset(
            snapshot_epoch=record.snapshot_epoch,
            state_epoch=record.state_epoch,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            delivery_complete_count=record.delivery_complete_count,
            state_batches=record.state_batches,
            update_count=0,
            create_timestamp_ms=record.create_timestamp_ms,
            leader_epochs=record.leader_epochs,
            truncation=record.truncation,
        )
    if isinstance(record, ShareTombstone):
        return None
    return _apply_update(state, record)


def _apply_update(state: ShareGroupOffset | None, update: ShareUpdate) -> ShareGroupOffset:
    if state is None:
        raise CorruptRecord(f"share-partition {update.key} has a ShareUpdate without a ShareSnapshot")
    if update.snapshot_epoch != state.snapshot_epoch or update.update_number != state.update_count + 1:
        raise CorruptRecord(
            f"share-partition {update.key} has ShareUpdate {update.update_number} of snapshot epoch "
            f"{update.snapshot_epoch} after update {state.update_count} of snapshot epoch {state.snapshot_epoch}"
        )
    start_offset = state.start_offset if update.start_offset == UNINITIALIZED_START_OFFSET else update.start_offset
    return ShareGroupOffset(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=combine_state_batches(state.state_batches, update.state_batches, start_offset),
        update_count=update.update_number,
        create_timestamp_ms=state.create_timestamp_ms,
        leader_epochs=state.leader_epochs,
        truncation=state.truncation,
    )
