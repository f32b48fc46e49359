"""The log reads of a share-partition: acquisition for a fetch, and the scan over stretches without records.

Both read the log from the machine's next fetch position and pass it the batches that exist (it archives the rest).
Neither waits, stores or reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.ports import StoredBatch, TopicLog
from kshare_leader.share.group_settings import GroupSettings
from kshare_leader.share.limits import FIRST_READ_BYTES, FRUITLESS_READS_LIMIT, READ_CHUNK_BYTES
from kshare_leader.share.log_slices import read_slice, readable_end

_NOTHING = FetchLimits(
    owner=Owner(""),
    max_records=1,
    batch_size=1,
    group=GroupLimits(lock_duration_ms=0, max_record_locks=1, delivery_count_limit=1),
)
"""Limits of an acquisition from a part of the log that has no batches: it only archives."""


class Taken(NamedTuple):
    """The acquired records of a fetch: entries of the response, and the batches that contain them."""

    records: list[AcquiredRecords]
    batches: list[StoredBatch]


def take_records(
    machine: SharePartition,
    log: TopicLog,
    limits: FetchLimits,
    taken: Taken,
    *,
    now_ms: int,
    max_bytes: int,
    at_least_one_batch: bool,
    read_committed: bool,
) -> bool:
    """Acquires records, up to the limits, into `taken`; they stay acquired even if this raises.

    Raises StorageFailure. Returns whether a long stretch without records follows, which the scan should cross.

    The first read is a small one; the next have about the bytes of the records that are left. Batches that are read and
    not acquired would be read again by the next fetch.
    """
    machine.remove_below(log.log_start_offset)
    cursor = machine.start_offset
    records_left, bytes_left = limits.max_records, max_bytes
    fruitless_reads = 0
    chunk_bytes = FIRST_READ_BYTES
    while records_left > 0:
        position = machine.next_fetch(cursor, limits.group)
        if position is None:
            return False
        read_bytes = max(1, min(chunk_bytes, bytes_left))
        part = read_slice(log, position.offset, read_bytes, read_committed=read_committed)
        if part is None:
            return False
        batches, cursor = part
        if batches and batches[0].length > bytes_left and (taken.records or not at_least_one_batch):
            return False
        headers = [(batch.base_offset, batch.last_offset) for batch in batches]
        if records_left < limits.max_records:
            limits = replace(limits, max_records=records_left, has_acquired=bool(taken.records))
        acquired, complete = machine.acquire(limits, now_ms, position.offset, headers, cursor)
        if acquired:
            taken.records.extend(acquired)
            added_bytes = _add_batches(taken.batches, batches, acquired)
            added_records = sum(last - first + 1 for first, last, _ in acquired)
            bytes_left -= added_bytes
            records_left -= added_records
            expected_bytes = added_bytes * records_left // added_records
            chunk_bytes = min(max(FIRST_READ_BYTES, expected_bytes), READ_CHUNK_BYTES)
        elif chunk_bytes < READ_CHUNK_BYTES:
            chunk_bytes = READ_CHUNK_BYTES
        else:
            fruitless_reads += 1
        if complete or (bytes_left <= 0 and taken.records):
            return False
        if fruitless_reads >= FRUITLESS_READS_LIMIT:
            return True
    return False


def _add_batches(batches: list[StoredBatch], read: Sequence[StoredBatch], acquired: Sequence[AcquiredRecords]) -> int:
    """Adds the batches that contain acquired records; returns their length in bytes. All arguments ascend."""
    length = 0
    index = 0
    for batch in read:
        while index < len(acquired) and acquired[index].last_offset < batch.base_offset:
            index += 1
        if index == len(acquired):
            break
        if acquired[index].first_offset <= batch.last_offset:
            batches.append(batch)
            length += batch.length
    return length


def archive_slice(machine: SharePartition, log: TopicLog, settings: GroupSettings) -> bool:
    """Archives offsets without records for the group in one slice of the log, from the fetch position on.

    Returns whether the slice had neither a record for the group nor the readable end. Raises StorageFailure.
    """
    position = machine.next_fetch(machine.start_offset, settings.limits)
    if position is None:
        return False
    part = read_slice(log, position.offset, READ_CHUNK_BYTES, read_committed=settings.read_committed)
    if part is None:
        return False
    following = iter(part.batches)
    batch = next(following, None)
    while position is not None and position.offset < part.covered_end:
        while batch is not None and batch.last_offset < position.offset:
            batch = next(following, None)
        if batch is not None and batch.base_offset <= position.offset:
            return False
        stop = part.covered_end if batch is None else batch.base_offset
        machine.acquire(_NOTHING, 0, position.offset, (), stop)
        position = machine.next_fetch(stop, settings.limits)
    return position is not None


def readable_bytes(machine: SharePartition, log: TopicLog, settings: GroupSettings, max_bytes: int) -> int:
    """The number of bytes in batches between the fetch position and the readable end, at most about `max_bytes`.

    An estimate like Kafka's (DelayedShareFetch.isMinBytesSatisfied): Acquired records in between count too.
    Raises StorageFailure.
    """
    position = machine.next_fetch(machine.start_offset, settings.limits)
    if position is None:
        return 0
    part = read_slice(log, position.offset, max_bytes, read_committed=settings.read_committed)
    if part is None:
        return 0
    found = sum(batch.length for batch in part.batches)
    if part.covered_end < readable_end(log, read_committed=settings.read_committed):
        return max(found, max_bytes)  # another batch did not fit
    return found
