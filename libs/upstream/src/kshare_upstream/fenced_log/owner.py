"""The owner of a fenced log: it claims the log, appends one batch after the other, confirms them, and prunes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_upstream.fenced_log.claim import Claim, ControlKind, ControlRecord, control_batch
from kshare_upstream.fenced_log.fold import CountedBatch, Fold, whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, OutcomeUnknown, PartitionLog, Refused
from kshare_upstream.port import Upstream
from kshare_upstream.producer_ids import ProducerId, fresh_producer_id
from kshare_wire.record_writing import BatchWriter, ProducerSequence

READ_BYTES = 4 * 1024 * 1024
READ_WAIT_MS = 100
SEQUENCES = 1 << 31
"""Sequence numbers go from the highest to 0 again (DefaultRecordBatch.incrementSequence)."""


class Superseded(Exception):
    """The log belongs to the owner of `claim`: what was not confirmed does not count."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"node {claim.node_id} owns the log in epoch {claim.epoch}, attempt {claim.attempt}")
        self.claim = claim


class MustClaimAgain(Exception):
    """Whether the last batch counts is unknown; a new claim, and what is read then, tells."""


class LogTruncated(Exception):
    """The log ends before what was confirmed: the cluster lost acknowledged records (an unclean leader election)."""


class LogRecord(NamedTuple):
    """A record to be appended."""

    key: bytes
    value: bytes | None


class TooLarge(Exception):
    """The records of one append do not fit into one batch."""


class FencedLog:
    """One owner of one log. Calls of `append`, `mark` and `resign` wait for each other.

    After Superseded, MustClaimAgain or LogTruncated only another `claim` may follow.
    """

    def __init__(
        self, upstream: Upstream, log: PartitionLog, *, max_batch_bytes: int, now_ms: Callable[[], int]
    ) -> None:
        self.log = log
        self.mark_offset = -1
        """The offset of the newest confirmed mark or claim: what is before it may be deleted."""
        self.void_batches = 0
        """Batches of data that this owner has read and that do not count."""
        self._upstream = upstream
        self._max_batch_bytes = max_batch_bytes
        self._now_ms = now_ms
        self._claim: Claim | None = None
        self._producer = ProducerId(-1, -1)
        self._sequence = 0
        self._expected_offset = 0
        self._turn = asyncio.Lock()

    @property
    def end_offset(self) -> int:
        """The offset after the last confirmed batch."""
        return self._expected_offset

    async def claim(self, claim: Claim, take: Callable[[CountedBatch], None]) -> None:
        """Becomes the owner, and hands every batch of data that counts to `take`, in order.

        Superseded names a claim of the same or a higher rank; MustClaimAgain asks for the next attempt. Refused,
        OutcomeUnknown, NotAFencedLog and UnknownControlRecord leave the log as it is. After any of them what was handed
        to `take` is to be forgotten.
        """
        async with self._turn:
            self._claim = None
            self._producer = await fresh_producer_id(self._upstream)
            batch = control_batch(ControlRecord(ControlKind.CLAIM, claim), self._sequence_at(0), self._now_ms())
            try:
                claimed_at = await self.log.append(batch)
            except OutcomeUnknown as problem:
                raise MustClaimAgain(str(problem)) from None
            fold = await self._fold_through(claimed_at, take)
            if fold.claim is None:
                raise MustClaimAgain("the log begins after the claim: another owner has pruned it")
            if fold.claimed_at != claimed_at:
                raise Superseded(fold.claim)
            self._claim = claim
            self._sequence = 1
            self._expected_offset = claimed_at + 1
            self.mark_offset = claimed_at

    async def append(self, records: Sequence[LogRecord]) -> int:
        """Appends records as one batch and returns its base offset once it is confirmed.

        TooLarge before anything is written; Superseded, MustClaimAgain, LogTruncated, Refused (MESSAGE_TOO_LARGE).
        """
        async with self._turn:
            producer = self._sequence_at(self._sequence)
            writer = BatchWriter(self._max_batch_bytes, producer=producer)
            for record in records:
                if not writer.append(self._now_ms(), record.key, record.value, ()) or (
                    writer.size_bytes > self._max_batch_bytes
                ):
                    raise TooLarge(f"{len(records)} records do not fit into {self._max_batch_bytes} bytes")
            return await self._confirmed(writer.build(), len(records))

    async def mark(self) -> int:
        """Appends a mark and returns its offset: from there on the log can be read alone."""
        async with self._turn:
            self.mark_offset = await self._control(ControlKind.MARK)
            return self.mark_offset

    async def resign(self) -> None:
        """Says that nothing more follows. Another claim may come at once."""
        async with self._turn:
            await self._control(ControlKind.RESIGN)
            self._claim = None

    async def prune(self) -> int:
        """Deletes what is before the newest confirmed mark; returns the log's start. Refused, OutcomeUnknown."""
        return await self.log.delete_before(self.mark_offset)

    async def _control(self, kind: ControlKind) -> int:
        record = ControlRecord(kind, self._owned())
        return await self._confirmed(control_batch(record, self._sequence_at(self._sequence), self._now_ms()), 1)

    async def _confirmed(self, batch: bytes, record_count: int) -> int:
        """Appends a batch, and returns its base offset once nothing can take it back."""
        self._owned()
        claim, self._claim = self._claim, None  # a failure below leaves the log without an owner here
        try:
            base_offset = await self.log.append(batch)
        except OutcomeUnknown as problem:
            raise MustClaimAgain(str(problem)) from None
        except Refused as refused:
            if refused.code == ErrorCode.MESSAGE_TOO_LARGE:
                self._claim = claim
                raise
            raise MustClaimAgain(str(refused)) from None
        self._claim = claim
        try:
            await self._check_position(base_offset)
        except BaseException:
            self._claim = None
            raise
        self._sequence = (self._sequence + record_count) % SEQUENCES
        self._expected_offset = base_offset + record_count
        return base_offset

    async def _check_position(self, base_offset: int) -> None:
        """Reads what came between the last confirmed batch and this one, and looks for a valid claim."""
        if base_offset == self._expected_offset:
            return
        if base_offset < self._expected_offset:
            raise LogTruncated(
                f"partition {self.log.at} appended at offset {base_offset}, and {self._expected_offset} was confirmed: "
                "the cluster lost acknowledged records"
            )
        claim, offset = self._owned(), self._expected_offset
        while offset < base_offset:
            for batch in await self._batches_from(offset):
                if batch.header.base_offset >= base_offset:
                    break
                rival = Fold()
                rival.claim = claim
                rival.take(batch)
                self.void_batches += rival.void_batches
                if rival.claim is not claim:
                    raise Superseded(rival.claim)
                offset = rival.end_offset
            else:
                continue
            break

    async def _fold_through(self, last_offset: int, take: Callable[[CountedBatch], None]) -> Fold:
        fold = Fold()
        offset = await self.log.offset_at(EARLIEST_TIMESTAMP)
        while offset <= last_offset:
            for batch in await self._batches_from(offset):
                if batch.header.base_offset > last_offset:
                    return fold
                if fold.take(batch):
                    take(batch)
                offset = fold.end_offset
        self.void_batches += fold.void_batches
        return fold

    async def _batches_from(self, offset: int) -> list[CountedBatch]:
        """The next batches, of which there are some: waits while the high watermark is behind (KIP-207).

        MustClaimAgain after the log's deadline: what was there is lost.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.log.deadline_ms / 1000
        while True:
            try:
                records = await self.log.read(offset, max_bytes=READ_BYTES, wait_ms=READ_WAIT_MS)
            except Refused as refused:
                if refused.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise MustClaimAgain(f"offset {offset} is gone: another owner has pruned the log") from None
                raise
            if found := list(whole_batches(records.data)):
                return found
            if loop.time() > deadline_s:
                raise MustClaimAgain(f"offset {offset} is gone: the cluster lost acknowledged records")

    def _owned(self) -> Claim:
        if self._claim is None:
            raise MustClaimAgain("the log is not claimed")
        return self._claim

    def _sequence_at(self, sequence: int) -> ProducerSequence:
        return ProducerSequence(*self._producer, sequence)
