"""The time of a coordinator as the owner of the log: its lease, appends, marks and snapshots.

One worker writes, one record after the other. Any confirmed record renews the lease, from when it was sent; a mark is
written when a third of the lease passed without one. Whatever leaves the outcome of a record unknown makes the worker
claim the log again, with the next attempt of the same epoch. What it reads then tells whether an append in flight
counts; if not, it is written again.

The session ends (`lose`) when the lease may have passed by the clock of a standby (`kshare_core.leases`), or when
another coordinator's claim is found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kshare_coordinator.metadata.appending import check_size
from kshare_coordinator.metadata.port import OwnershipLost
from kshare_coordinator.metadata.problems import Problems
from kshare_coordinator.metadata.upstream.failures import RETRY_INTERVAL_MS, UPSTREAM_FAILURES
from kshare_coordinator.metadata.upstream.records import append_bytes, append_records, snapshot_records
from kshare_coordinator.metadata.upstream.rows import LogRows
from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.leases import held_s
from kshare_runtime.ports import Write
from kshare_upstream.fenced_log.claim import Claim, UnknownControlRecord
from kshare_upstream.fenced_log.fold import NotAFencedLog
from kshare_upstream.fenced_log.owner import FencedLog, LogRecord, LogTruncated, MustClaimAgain, Superseded
from kshare_upstream.partition_log import Refused

MARKS_PER_LEASE = 3
UNCLAIMABLE = (MustClaimAgain, NotAFencedLog, UnknownControlRecord, *UPSTREAM_FAILURES)
"""Errors of a claim after which the next attempt may succeed."""
AREA, PRUNING_AREA, TRUNCATED_AREA = "metadata log", "pruning", "lost records"
SNAPSHOT_RETRY_S = 30.0
"""After the topic of the metadata took no piece of a snapshot because of its size."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Length of a lease, bytes of a record's data, and when a snapshot is due."""

    lease_ms: int
    piece_bytes: int
    journal_limit: int
    """Records after the newest snapshot."""
    journal_bytes_limit: int


@dataclass(slots=True)
class _Append:
    writes: Mapping[int, Sequence[Write]]
    data: bytes
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Snapshot:
    """A snapshot that is being written. What is before `mark_offset` may be deleted when it is complete."""

    mark_offset: int
    first_offset: int
    size: int
    records: Iterator[LogRecord]


class Session:
    """The session; see the module's text.

    `claim` was confirmed when `log` was claimed, and sent not before `sent_at`. It serves from `serve_from` on, which
    is when `on_serving` is called.
    """

    def __init__(
        self,
        fenced: FencedLog,
        claim: Claim,
        rows: LogRows,
        limits: Limits,
        problems: Problems,
        *,
        sent_at: float,
        serve_from: float,
        on_serving: Callable[[], None],
    ) -> None:
        self._log = fenced
        self._claim = claim
        self.rows = rows.owned()
        self._limits = limits
        self._problems = problems
        self._serve_from = serve_from
        self._on_serving = on_serving
        self._loop = asyncio.get_running_loop()
        self._lease_s = held_s(limits.lease_ms)
        self._renewed_at = sent_at
        self.is_serving = self.has_served = False
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._worker: asyncio.Task[None] | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._serve_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._waiting: _Append | None = None
        self._snapshot: _Snapshot | None = None
        self._must_replace = False
        """Whether the log has lost rows that are known here; appends wait until a snapshot of them is complete."""
        self._unclaimed: str | None = None
        """Why the log must be claimed again."""
        self._is_stopping = False
        self._journal_bytes = 0
        self._no_snapshot_before = 0.0
        """By the loop's time: the topic took no piece of the last one."""

    async def run(self) -> str:
        """Runs until the end of the session; returns the reason."""
        self._check_lease()
        if not self._ended.done():
            self._worker = self._loop.create_task(self._work(), name="metadata log")
            self._serve_timer = self._loop.call_at(max(self._serve_from, self._loop.time()), self._serve)
        return await asyncio.shield(self._ended)

    def owns(self) -> bool:
        return self.is_serving and self._loop.time() < self._deadline

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None]:
        """See the port."""
        if self._waiting is not None:
            raise RuntimeError("an append is still in progress")
        done: asyncio.Future[None] = self._loop.create_future()
        if not self.owns() or self._is_stopping:
            done.set_exception(OwnershipLost("this coordinator does not own the metadata now"))
            return done
        try:
            check_size(writes)
        except StorageFailure as too_large:
            done.set_exception(too_large)
            return done
        self._waiting = _Append(writes, append_bytes(writes), done)
        self._wake.set()
        return done

    def lose(self, reason: str) -> None:
        """Ends the session; an append in flight fails, since it may count or not."""
        if not self._ended.done():
            self._ended.set_result(reason)
        self._close()

    async def stop(self) -> None:
        """Stops serving, finishes the record in flight, and gives up the log; no later than the lease ends."""
        self.is_serving, self._is_stopping = False, True
        self._wake.set()
        worker, left_s = self._worker, self._deadline - self._loop.time()
        try:
            if worker is None or left_s <= 0:
                return
            await asyncio.wait([worker], timeout=left_s)
            if worker.done() and self._unclaimed is None and not self._ended.done():
                async with asyncio.timeout(max(0.0, self._deadline - self._loop.time())):
                    await self._log.resign()
        except (TimeoutError, Superseded, LogTruncated, MustClaimAgain, *UPSTREAM_FAILURES) as error:
            log.info("the metadata could not be given up, others take it over after its lease: %s", error)
        finally:
            self._close()
            if worker is not None:
                await asyncio.wait([worker])

    @property
    def claim(self) -> Claim:
        """The newest claim of the session."""
        return self._claim

    @property
    def _deadline(self) -> float:
        return self._renewed_at + self._lease_s

    def _close(self) -> None:
        self.is_serving = False
        for timer in (self._lease_timer, self._serve_timer):
            if timer is not None:
                timer.cancel()
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()
        append, self._waiting = self._waiting, None
        if append is not None and not append.done.done():
            append.done.set_exception(OwnershipLost("the lease may have passed; whether the write counts is unknown"))

    def _serve(self) -> None:
        if self._loop.time() < self._deadline and not self._ended.done() and not self._is_stopping:
            self.is_serving = self.has_served = True
            self._on_serving()

    def _check_lease(self) -> None:
        left_s = self._deadline - self._loop.time()
        if left_s <= 0:
            self.lose(f"no record was confirmed for {self._lease_s:.1f} s")
        else:
            self._lease_timer = self._loop.call_later(left_s, self._check_lease)

    # The worker.

    async def _work(self) -> None:
        while not self._is_stopping:
            try:
                await self._step()
            except Superseded as problem:
                self.lose(str(problem))
                return
            except LogTruncated as problem:
                self._truncated(str(problem))
                self._unclaimed = str(problem)
            except UNCLAIMABLE as problem:
                if self._unclaimed is not None:
                    await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
                self._problems.note(AREA, f"the metadata log cannot be written: {problem}")
                self._unclaimed = str(problem)
            except StorageFailure as failure:
                self.lose(f"the metadata log cannot be used: {failure}")
                return
            except Exception as bug:
                report_contained_bug("an unexpected error ended the ownership of the metadata", bug)
                self.lose(f"{bug!r}")
                return

    async def _step(self) -> None:
        if self._unclaimed is not None:
            await self._claim_again()
        elif self._waiting is not None and not self._must_replace:
            await self._append(self._waiting)
        if self._loop.time() >= self._mark_at:
            await self._mark()
        if self._snapshot is not None or self._is_snapshot_due():
            await self._write_snapshot()
        elif self._waiting is None:
            await self._idle()

    @property
    def _mark_at(self) -> float:
        return self._renewed_at + self._lease_s / MARKS_PER_LEASE

    async def _idle(self) -> None:
        """Waits for an append or until the next mark is due."""
        timer = self._loop.call_at(self._mark_at, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()

    async def _append(self, append: _Append) -> None:
        number = self.rows.next_number
        for record in append_records(number, append.data, self._limits.piece_bytes):
            try:
                await self._write(record)
            except Refused as refused:
                if refused.code != ErrorCode.MESSAGE_TOO_LARGE:
                    raise
                self._answer(append, StorageFailure(f"the topic of the metadata takes no record so large: {refused}"))
                return
        self.rows.apply(append.writes)
        self._answer(append, None)

    def _answer(self, append: _Append, failure: StorageFailure | None) -> None:
        if self._waiting is not append:
            return  # the session ended meanwhile
        self._waiting = None
        if append.done.done():
            return  # its caller was cancelled, as when the node stops
        if failure is not None:
            append.done.set_exception(failure)
        else:
            append.done.set_result(None)

    async def _write(self, record: LogRecord) -> int:
        sent_at = self._loop.time()
        offset = await self._log.append([record])
        self._renewed(sent_at)
        self._journal_bytes += len(record.value or b"")
        return offset

    async def _mark(self) -> int:
        sent_at = self._loop.time()
        offset = await self._log.mark()
        self._renewed(sent_at)
        return offset

    def _renewed(self, sent_at: float) -> None:
        self._renewed_at = sent_at
        self._problems.clear(AREA)

    # Unknown outcomes.

    async def _claim_again(self) -> None:
        self._claim = self._claim._replace(attempt=self._claim.attempt + 1)
        self._snapshot = None
        found = LogRows()
        sent_at = self._loop.time()
        await self._log.claim(self._claim, found.fold)
        self._unclaimed = None
        self._renewed(sent_at)
        log.info("claimed the metadata log again, in attempt %d", self._claim.attempt)
        if not found.is_whole or found.next_number < self.rows.next_number:
            self._truncated(
                f"the metadata log has {found.next_number} appends, and {self.rows.next_number} were confirmed: the "
                "cluster lost acknowledged records"
            )
        elif found.next_number == self.rows.next_number + 1 and self._waiting is not None and not self._must_replace:
            append = self._waiting
            self.rows = found.owned()
            self._answer(append, None)
        elif found.next_number > self.rows.next_number and not self._must_replace:
            raise StorageFailure(f"it has appends up to {found.next_number - 1} that this owner has not written")

    def _truncated(self, what: str) -> None:
        """The rows in memory are those that were confirmed: a snapshot of them replaces what the log has."""
        log.error("%s; writing all metadata again", what)
        self._problems.note(TRUNCATED_AREA, what)
        self._must_replace = True
        self._snapshot = None

    # Snapshots.

    def _is_snapshot_due(self) -> bool:
        if self._must_replace:
            return True
        if self._loop.time() < self._no_snapshot_before:
            return False
        records = self._log.end_offset - self.rows.snapshot_offset
        is_long = records > self._limits.journal_limit or self._journal_bytes > self._limits.journal_bytes_limit
        pays = 2 * self._journal_bytes >= self.rows.snapshot_bytes or records > 10 * self._limits.journal_limit
        return is_long and pays and self._waiting is None

    async def _write_snapshot(self) -> None:
        """Writes the next piece of the snapshot, the first one behind a mark."""
        if self._snapshot is None:
            mark_offset = await self._mark()
            rows = {partition: dict(of_one) for partition, of_one in self.rows.partitions.items()}
            records = snapshot_records(
                self.rows.next_number, rows, self._limits.piece_bytes, replaces=self._must_replace
            )
            self._snapshot = _Snapshot(mark_offset, -1, 0, records)
        snapshot = self._snapshot
        record = next(snapshot.records, None)
        if record is not None:
            try:
                offset = await self._write(record)
            except Refused as refused:
                self._snapshot_refused(refused)
                return
            snapshot.first_offset = offset if snapshot.first_offset < 0 else snapshot.first_offset
            snapshot.size += len(record.value or b"")
            return
        self._snapshot = None
        self._no_snapshot_before = 0.0
        self.rows.snapshot_offset, self.rows.snapshot_bytes = snapshot.first_offset, snapshot.size
        self._journal_bytes = 0
        if self._must_replace:
            self._must_replace = False
            log.warning("all metadata is in the log again")
            self._problems.clear(TRUNCATED_AREA)
        try:
            await self._log.log.delete_before(snapshot.mark_offset)
        except UPSTREAM_FAILURES as error:
            self._problems.note(PRUNING_AREA, f"the metadata log cannot be pruned: {error}")
        else:
            self._problems.clear(PRUNING_AREA)

    def _snapshot_refused(self, refused: Refused) -> None:
        """A piece that is too large for the topic stays so: the log grows until an administrator allows more."""
        if refused.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise refused
        reason = f"its topic takes no snapshot piece ({refused}); raise max.message.bytes"
        if self._must_replace:
            raise StorageFailure(reason) from refused
        self._problems.note(PRUNING_AREA, f"the metadata log cannot be pruned: {reason}")
        self._snapshot = None
        self._no_snapshot_before = self._loop.time() + SNAPSHOT_RETRY_S
