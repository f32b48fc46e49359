"""The background pass over all rows of the state partitions that this node serves, in small slices.

- Every row is read, with the checksums of RocksDB and its own, and every share-partition's records are replayed. So
  damage is in the log and in the health check before the state is needed.
- A share-partition that has updates and was not written between two passes is cold: it gets a snapshot, so that it
  loads from one row again. Passes are share.coordinator.cold.partition.snapshot.interval.ms apart; Kafka's job runs as
  often. Candidates are kept in memory between passes, so no times of writes are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_share_coordinator.checksummed_store import ChecksummedStore, unsealed
from kshare_share_coordinator.machine.operations import Result, SnapshotColdState
from kshare_share_coordinator.machine.share_group_offset import ShareSnapshot
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.state_log.port import Found
from kshare_share_coordinator.state_store import (
    END_OF_SHARE_PARTITIONS,
    FAMILY_PREFIX,
    METADATA_FAMILY,
    StateStore,
    family_of,
)

FIRST_PASS_MS = 10_000
"""Delay of the first pass after the start, whose own work comes first."""
SLICE_ROWS = 60
"""Rows of share-partitions read in one slice: about a millisecond, which blocks answers. One may have 501."""
SLICE_OTHER_ROWS = 300
"""Other rows read in one slice, of which only the checksum is verified."""
PAUSE_MS = 100
"""Pause between slices: the pass takes a hundredth of a CPU, and four minutes for 100,000 share-partitions."""
REMEMBERED_SHARE_PARTITIONS_LIMIT = 200_000
"""Share-partitions with updates that one pass remembers; those beyond have their turn when others have snapshots."""
REPORTED_ROWS_LIMIT = 100

log = logging.getLogger(__name__)

Cold = dict[SharePartitionKey, tuple[int, int]]
"""Snapshot epoch and number of updates of share-partitions that have updates."""


class StateWalk:
    """`submit` gives an operation to the machine's runner; only state partitions that this node answers for are
    read."""

    def __init__(
        self,
        *,
        store: ChecksummedStore,
        state_store: StateStore,
        ownership: Ownership,
        submit: Callable[[SnapshotColdState], asyncio.Future[Result]],
        interval_ms: int,
    ) -> None:
        self._store = store
        self._state_store = state_store
        self._ownership = ownership
        self._submit = submit
        self._interval_ms = interval_ms
        self._seen: Cold = {}
        self._corrupt_rows: dict[bytes, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = restarted_after_bugs("the pass over all rows", self._run)
        self._task = asyncio.get_running_loop().create_task(work, name="walk-states")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def problems(self) -> list[str]:
        """Corrupt rows that belong to no share-partition."""
        return list(self._corrupt_rows.values())

    async def _run(self) -> None:
        await asyncio.sleep(min(FIRST_PASS_MS, self._interval_ms) / 1000)
        while True:
            await self.walk()
            await asyncio.sleep(self._interval_ms / 1000)

    async def walk(self) -> None:
        """Runs one pass."""
        before, self._seen = self._seen, {}
        self._corrupt_rows = {}
        await self._check_rows(METADATA_FAMILY, b"")
        for state_partition in self._state_partitions():
            if self._serves(state_partition):
                await self._walk_state_partition(state_partition, before)
                await self._check_rows(family_of(state_partition), END_OF_SHARE_PARTITIONS)

    def _state_partitions(self) -> list[int]:
        numbers = [family.removeprefix(FAMILY_PREFIX) for family in self._store.families()]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _serves(self, state_partition: int) -> bool:
        return self._ownership.state_partition_refusal(state_partition) is None

    async def _walk_state_partition(self, state_partition: int, before: Cold) -> None:
        start: bytes | None = b""
        while start is not None and self._serves(state_partition):
            try:
                found, start = self._state_store.share_partitions(family_of(state_partition), start, SLICE_ROWS)
            except StorageFailure as failure:
                log.error("state partition %d cannot be verified: %s", state_partition, failure)
                return
            await self._note(found, before)
            await asyncio.sleep(PAUSE_MS / 1000)

    async def _note(self, found: Sequence[Found], before: Cold) -> None:
        """Remembers share-partitions with updates, and waits for the snapshots of those that are cold."""
        pending = []
        for key, records, problem in found:
            if problem is not None or key is None:
                log.error("a share-partition cannot be read: %s", problem)
                if key is not None:
                    self._state_store.report_corrupt(key, problem or "")
                continue
            self._state_store.report_readable(key)
            snapshot, update_count = records[0], len(records) - 1
            if not update_count or not isinstance(snapshot, ShareSnapshot):
                continue
            if before.get(key) == (snapshot.snapshot_epoch, update_count):
                pending.append(self._submit(SnapshotColdState(key, snapshot.snapshot_epoch, update_count)))
            elif len(self._seen) < REMEMBERED_SHARE_PARTITIONS_LIMIT:
                self._seen[key] = (snapshot.snapshot_epoch, update_count)
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(outcome, StorageFailure):
                log.warning("a snapshot of a cold share-partition cannot be written: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _check_rows(self, family: str, start: bytes | None) -> None:
        """Verifies rows other than records of share-partitions, from a key to the family's end."""
        while start is not None:
            try:
                start = self._check_slice(family, start)
            except StorageFailure as failure:
                log.error("%s cannot be verified: %s", family, failure)
                return
            await asyncio.sleep(PAUSE_MS / 1000)

    def _check_slice(self, family: str, start: bytes) -> bytes | None:
        """Verifies one slice; returns the key from which to continue, None at the end."""
        for count, (key, stored) in enumerate(self._store.scan_stored(family, start)):
            if count == SLICE_OTHER_ROWS:
                return key
            try:
                unsealed(family, key, stored)
            except CorruptRow as problem:
                log.error("%s", problem)
                if len(self._corrupt_rows) < REPORTED_ROWS_LIMIT:
                    self._corrupt_rows[key] = str(problem)
        return None
