"""What a standby has read of the log, and when the log becomes free for its claim.

A record that counts keeps its owner's lease alive for one lease from when it is read here: the owner counts from when
it sent the record, which was earlier. Records of this coordinator's own claims do not count for that.
"""

from __future__ import annotations

import asyncio
import math

from kshare_coordinator.metadata.upstream.rows import LogRows, Writes
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_upstream.fenced_log.claim import Claim, UnknownControlRecord
from kshare_upstream.fenced_log.fold import CountedBatch, Fold, NotAFencedLog, whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, PartitionLog, Refused

READ_BYTES = 4 * 1024 * 1024


class LogLost(Exception):
    """The log no longer continues what was read: it was pruned above it, or cut. It has to be read anew."""


class LogTail:
    """The log from its start on; see the module's text.

    `own` is the incarnation in this coordinator's claims. `served_epoch` is the epoch under which it served last: if
    that claim is still the last one, the leases of earlier owners are over.
    """

    def __init__(self, log: PartitionLog, own: bytes, *, lease_ms: int, served_epoch: int = -1) -> None:
        self._log = log
        self._own = own
        self._lease_s = lease_ms / 1000
        self._served_epoch = served_epoch
        self._fold = Fold()
        self._is_at_start = True
        self._loop = asyncio.get_running_loop()
        self.rows = LogRows()
        self.position = -1
        """The offset of the next record; -1 before the first read."""
        self.is_caught_up = False
        """Whether the newest read reached the high watermark."""
        self.free_at = -math.inf
        """The loop's time from which on no other coordinator may serve."""

    @property
    def claim(self) -> Claim | None:
        """The last valid claim."""
        return self._fold.claim

    @property
    def has_resigned(self) -> bool:
        """Whether the last owner has given up the log."""
        return self._fold.has_resigned

    @property
    def may_claim(self) -> bool:
        """Whether no other coordinator serves now, as far as the log was read."""
        return self.is_caught_up and self._loop.time() >= self.free_at

    async def read(self, *, wait_ms: int) -> list[Writes | None]:
        """Reads on; what changed, in order, with None where all rows were replaced.

        StorageFailure: it is not the log of a coordinator, or damaged. LogLost; Refused, OutcomeUnknown.
        """
        if self.position < 0:
            self.position = await self._log.offset_at(EARLIEST_TIMESTAMP)
            self.rows.is_whole = self.position == 0
        self.is_caught_up = False
        try:
            records = await self._log.read(self.position, max_bytes=READ_BYTES, wait_ms=wait_ms)
        except Refused as refused:
            if refused.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise LogLost(f"offset {self.position} of partition {self._log.at} is gone") from None
            raise
        changes: list[Writes | None] = []
        was_whole = self.rows.is_whole
        for batch in whole_batches(records.data):
            if batch.header.base_offset + batch.header.last_offset_delta >= self.position:
                changes += self._take(batch)
                self.position = self._fold.end_offset
        self.is_caught_up = self.position >= records.high_watermark
        if was_whole and not self.rows.is_whole:
            raise LogLost(f"appends are missing before offset {self.position} of partition {self._log.at}")
        if self.is_caught_up and not self.rows.is_whole and not self._may_become_whole():
            raise StorageFailure(
                f"partition {self._log.at} begins neither with its first record nor with a snapshot: its beginning was "
                "deleted, and rows of the metadata with it"
            )
        return changes

    def _may_become_whole(self) -> bool:
        """Whether an owner is alive that may be about to write a snapshot."""
        return not self.has_resigned and self._loop.time() < self.free_at

    def _take(self, batch: CountedBatch) -> list[Writes | None]:
        fold, before = self._fold, self._fold.claim
        try:
            counts = fold.take(batch)
        except NotAFencedLog as problem:
            raise StorageFailure(
                f"partition {self._log.at} is not a log of coordinators, or its beginning was deleted: {problem}"
            ) from problem
        except UnknownControlRecord as problem:
            raise StorageFailure(f"partition {self._log.at} cannot be read: {problem}") from problem
        if fold.has_resigned:
            self.free_at = -math.inf
        elif batch.header.producer_id == fold.producer_id and fold.claim is not None:
            if fold.claim.incarnation != self._own:
                self.free_at = self._loop.time() + self._lease_s
            elif fold.claim is not before and fold.claim.epoch == self._served_epoch:
                self.free_at = -math.inf
        return self.rows.take(batch) if counts else []
