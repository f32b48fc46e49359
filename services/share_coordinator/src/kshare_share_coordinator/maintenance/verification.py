"""Verification of every row of an offline store: checksums, records, places.

RocksDB verifies the checksum of each block on the way. Problems are listed by state partition; a damaged one does not
stop the verification of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_share_coordinator.checksummed_store import ChecksummedStore, unsealed
from kshare_share_coordinator.machine.share_group_offset import LogTruncation, Record, ShareGroupOffset, apply
from kshare_share_coordinator.maintenance.exports import SLICE_ROWS, state_partitions_of
from kshare_share_coordinator.state_store import END_OF_SHARE_PARTITIONS, METADATA_FAMILY, StateStore, family_of

PROBLEMS_LIMIT = 100
"""Limit of listed problems for each state partition."""


class VerifiedState(NamedTuple):
    """A state's statements about its log: offsets below `end_offset`, and its truncation if the log had others."""

    key: SharePartitionKey
    start_offset: int
    end_offset: int
    truncation: LogTruncation | None


@dataclass(slots=True)
class Verified:
    """The result for a state partition, or for the metadata."""

    name: str
    share_partitions: int = 0
    updates: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    states: list[VerifiedState] = field(default_factory=list)
    """States of the share-partitions whose records can be read."""

    def add_problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_LIMIT:
            self.problems.append(text)


def verify(store: ChecksummedStore) -> list[Verified]:
    """Verifies the metadata, then each state partition that has a family."""
    metadata = Verified("metadata")
    state_store = StateStore(store=store, state_partition_of=lambda key: 0)
    count: int | None = None
    try:
        count = state_store.state_partition_count()
        _check_rows(store, METADATA_FAMILY, b"", metadata)
    except StorageFailure as failure:
        metadata.add_problem(str(failure))
    return [metadata, *[_verify(store, state_store, number, count) for number in state_partitions_of(store)]]


def _verify(store: ChecksummedStore, state_store: StateStore, state_partition: int, count: int | None) -> Verified:
    verified = Verified(f"state partition {state_partition}")
    family = family_of(state_partition)
    start: bytes | None = b""
    try:
        while start is not None:
            found, start = state_store.share_partitions(family, start, SLICE_ROWS)
            for key, records, problem in found:
                verified.share_partitions += 1
                verified.updates += max(0, len(records) - 1)
                if problem is not None or key is None:
                    verified.add_problem(problem or "a share-partition has no name")
                    continue
                verified.states.append(_state_of(key, records))
                if count and state_partition_of(key, count) != state_partition:
                    verified.add_problem(f"share-partition {key} is stored here but belongs to another state partition")
        _check_rows(store, family, END_OF_SHARE_PARTITIONS, verified)
    except StorageFailure as failure:
        verified.add_problem(str(failure))
    return verified


def _state_of(key: SharePartitionKey, records: Sequence[Record]) -> VerifiedState:
    state: ShareGroupOffset | None = None
    for record in records:
        state = apply(state, record)
    assert state is not None, f"share-partition {key} has no records"
    end_offset = state.state_batches[-1].last_offset + 1 if state.state_batches else state.start_offset
    return VerifiedState(key, state.start_offset, max(end_offset, state.start_offset), state.truncation)


def _check_rows(store: ChecksummedStore, family: str, start: bytes, verified: Verified) -> None:
    for key, stored in store.scan_stored(family, start):
        try:
            unsealed(family, key, stored)
        except CorruptRow as problem:
            verified.add_problem(str(problem))
