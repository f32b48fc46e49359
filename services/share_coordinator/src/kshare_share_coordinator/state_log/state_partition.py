"""One state partition in the existing cluster: its fenced log, its rows in memory, and the machine over them.

A turn of the machine is one batch, hence atomic, and is answered when the batch is confirmed. Turns are decided one
after the other, so every decision is made on durable state.

**Claims.** The log is claimed with the epoch that the catalog gave this node. Where the outcome of an append is not
known, or somebody else's batches came between, the log is claimed again with the next attempt, and what is read then is
the state. Until then operations are refused with COORDINATOR_LOAD_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE while the
cluster does not answer. A claim with a higher epoch ends the ownership, whatever the catalog says: NOT_COORDINATOR. If
the catalog still names this node in an answer to a call that was sent later, its metadata is older than the log, and
this node registers anew, with the log's epoch.

**Lost records.** The rows in memory stay while this node claims again. If the log has lost some of them, or its end, as
after an unclean leader election, they are appended again before anything is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.machine import Decision, Machine, MachineRunner
from kshare_share_coordinator.machine.operations import InitializeState, Operation, Result, SnapshotColdState
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine, ShareDecision
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, Record, ShareSnapshot, ShareTombstone
from kshare_share_coordinator.metrics import StateMetrics
from kshare_share_coordinator.state_log.pruning import LogLength, PruningPolicy
from kshare_share_coordinator.state_log.restoration import is_lost, restoring_records
from kshare_share_coordinator.state_log.rows import StateRows, encoded_record, prefix_of
from kshare_upstream.connection import NotServed
from kshare_upstream.fenced_log.claim import Claim, UnknownControlRecord, control_record
from kshare_upstream.fenced_log.fold import NotAFencedLog, whole_batches
from kshare_upstream.fenced_log.owner import FencedLog, LogRecord, LogTruncated, MustClaimAgain, Superseded, TooLarge
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Refused
from kshare_upstream.sasl import AuthenticationFailed
from kshare_upstream.topics import MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES_CONFIG

RETRY_MS = 250
REFUSED_RETRY_MS = 5_000
"""Pause before a log is looked at again that this node must not write to."""
UPKEEP_INTERVAL_MS = 1_000
COLD_STATES_AT_ONCE = 200
WAITING_OPERATIONS_LIMIT = 10_000
TURN_BYTES_LIMIT = 500_000
"""Together with the largest state, 400 kB of 20,000 state batches, a turn fits into Kafka's largest batch of 1 MiB."""
CACHED_STATES_LIMIT = 6_000
CACHED_STATE_BATCHES_LIMIT = 40_000
"""Decoded states of one state partition; the others are decoded from their rows when they are used."""
TRUNCATION_SHOWN_MS = 600_000
REFUSAL_SHOWN_S = 600
UNSERVED_SHOWN_AFTER_MS = 10_000

log = logging.getLogger(__name__)

UNREACHABLE = (OSError, Refused, AuthenticationFailed, NotServed)
UNREADABLE = (NotAFencedLog, UnknownControlRecord, CorruptRecord, KafkaError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The parts of a state partition's node that it uses."""

    now_ms: Callable[[], int]
    policy: PruningPolicy
    metrics: StateMetrics
    updates_per_snapshot: int
    heard_of_catalog_at: Callable[[], float | None]
    """When the newest call was sent that the coordinator answered with the catalog as this node has it."""
    is_full: Callable[[], bool]
    """Whether the node's memory has no room for further states."""
    report_epoch: Callable[[int], None]
    """The log has this epoch, although the catalog names this node with a lower one."""
    report_corrupt: Callable[[SharePartitionKey, str], None]
    """The state of this share-partition cannot be read."""
    check_corrupt: Callable[[int], None]
    """The state partition has other rows: states that could not be read may be gone, or readable."""


class _Refusal(NamedTuple):
    """A batch that the topic refused because of its size: the smallest one, and until when that is shown."""

    text: str
    size: int
    shown_until_s: float


class _Guarded:
    """A machine that answers with a refusal while its state partition has one."""

    def __init__(self, machine: ShareCoordinatorMachine, refusal: Callable[[Operation], Result | None]) -> None:
        self._machine = machine
        self._refusal = refusal

    def decide(self, command: Operation, now_ms: int) -> ShareDecision:
        refusal = self._refusal(command)
        return self._machine.decide(command, now_ms) if refusal is None else Decision((), refusal)

    def replay(self, record: Record) -> None:
        self._machine.replay(record)


class StatePartition:
    """A state partition that the catalog says this node owns, in one epoch of that; `start` claims it."""

    def __init__(self, number: int, fenced_log: FencedLog, claim: Claim, surroundings: Surroundings) -> None:
        self.number = number
        self.rows = StateRows()
        self.refusal: Result | None = _loading(f"state partition {number} is being read from the existing cluster")
        self._log = fenced_log
        self._claim = claim
        self._around = surroundings
        self._has_rows = False
        """Whether `rows` is what this owner confirmed."""
        self._end_offset = 0
        """The offset after what is in `rows`."""
        self._rival: Claim | None = None
        self._problem: str | None = None
        self._pruning_problem: str | None = None
        self._unreadable: tuple[int, str] | None = None
        """The offset of the oldest snapshot and its problem, where it was to be written again and cannot be read."""
        self._refusal: _Refusal | None = None
        """The newest refusal of a batch because of its size, until a batch of that size is taken."""
        self._is_truncated = False
        """Whether the log has lost confirmed records that are not appended again yet."""
        self._truncation: tuple[str, float] | None = None
        """The newest loss, and until when it is shown."""
        self._unserved_since_s = _now_s()
        self._length: LogLength | None = None
        self._must_claim = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._machine = self._new_machine()
        self._runner: MachineRunner[Operation, Record, Result, None] = MachineRunner(
            load=self._load_machine,
            append=self.append,
            act=lambda effects: None,
            now_ms=surroundings.now_ms,
            queue_limit=WAITING_OPERATIONS_LIMIT,
            size=_size,
            turn_bytes_limit=TURN_BYTES_LIMIT,
        )
        self.submit = self._runner.submit

    @property
    def epoch(self) -> int:
        """The epoch in which the catalog names this node."""
        return self._claim.epoch

    @property
    def rival_epoch(self) -> int:
        """The epoch of the owner that has superseded this one; 0 if none has."""
        return 0 if self._rival is None else self._rival.epoch

    @property
    def log_records(self) -> int:
        """The length of the log, in offsets."""
        return 0 if self._length is None else self._end_offset - self._length.start_offset

    @property
    def void_batches(self) -> int:
        """Batches of others that this owner has read and that do not count."""
        return self._log.void_batches

    def start(self) -> None:
        name = f"state-partition-{self.number}"
        self._task = asyncio.get_running_loop().create_task(self._hold(), name=name)

    def end(self, refusal: Result) -> None:
        """Answers with `refusal` from now on. A batch under way is still confirmed, if it counts."""
        self.refusal = refusal
        if self._task is not None:
            self._task.cancel()

    async def resign(self) -> None:
        """Says in the log that nothing more follows, if it is this node's; to be called after `end`."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._has_rows and not self._must_claim.is_set():
            await self._log.resign()

    async def drain(self) -> None:
        """Returns when every operation that was submitted before has its answer."""
        await self._runner.barrier()

    async def stop(self) -> None:
        """Ends what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._runner.stop()

    def problems(self) -> list[str]:
        """Problems for the health check."""
        found = [each for each in (self._problem, self._pruning_problem) if each is not None]
        if self._refusal is not None and _now_s() < self._refusal.shown_until_s:
            found.append(self._refusal.text)
        if self.refusal is not None and self._problem is None:
            waited_ms = (_now_s() - self._unserved_since_s) * 1000
            found += [self.refusal.error_message] if waited_ms > UNSERVED_SHOWN_AFTER_MS else []
        if self._truncation is not None:
            text, until_s = self._truncation
            found += [text] if _now_s() < until_s else []
        return found

    async def append(self, records: Sequence[Record]) -> None:
        """Appends the records as one batch; KafkaError unless it was confirmed, StorageFailure if it is too large."""
        rows, machine, metrics = self.rows, self._machine, self._around.metrics
        encoded = [encoded_record(record) for record in records]
        started_at = metrics.now()
        try:
            base_offset = await self._append(encoded)
        except BaseException:
            metrics.append_failed(metrics.now() - started_at)
            raise
        self._add(rows, base_offset, encoded)
        machine.records_are_durable()
        if rows is self.rows and any(isinstance(record, ShareTombstone) for record in records):
            self._around.check_corrupt(self.number)
        size = sum(map(_size_of_encoded, encoded))
        if self._refusal is not None and size >= self._refusal.size:
            self._refusal = None
        metrics.records_appended(records, size, metrics.now() - started_at)

    async def _append(self, records: Sequence[LogRecord]) -> int:
        try:
            return await self._log.append(records)
        except TooLarge as problem:
            raise StorageFailure(str(problem)) from None
        except Refused as refused:
            if refused.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise self._failed(refused) from refused
            raise self._too_large(sum(map(_size_of_encoded, records))) from None
        except Exception as problem:
            raise self._failed(problem) from problem

    def _too_large(self, size: int) -> StorageFailure:
        """Notes that the topic refused a batch; the log is still this node's. Returns the answer of its operations."""
        topic = self._log.log.at.topic
        text = (
            f"topic {topic} of the existing cluster refused {size} bytes of states of state partition {self.number}: "
            f"set its {MAX_MESSAGE_BYTES_CONFIG} to {MAX_MESSAGE_BYTES}"
        )
        known = self._refusal
        if known is None:
            log.error("%s", text)
        self._refusal = _Refusal(text, size if known is None else min(size, known.size), _now_s() + REFUSAL_SHOWN_S)
        return StorageFailure(text)

    def _add(self, rows: StateRows, base_offset: int, records: Sequence[LogRecord]) -> None:
        for offset, (key, value) in enumerate(records, base_offset):
            rows.add(offset, key, value)
        if rows is self.rows:
            self._end_offset = max(self._end_offset, base_offset + len(records))

    # The machine

    def _new_machine(self) -> ShareCoordinatorMachine:
        return ShareCoordinatorMachine(
            load=self.rows.records,
            snapshot_update_records_per_snapshot=self._around.updates_per_snapshot,
            cached_states_limit=CACHED_STATES_LIMIT,
            cached_state_batches_limit=CACHED_STATE_BATCHES_LIMIT,
        )

    def _load_machine(self) -> Machine[Operation, Record, Result, None]:
        self._machine = self._new_machine()
        return _Guarded(self._machine, self._refusal_of)

    def _refusal_of(self, operation: Operation) -> Result | None:
        if self.refusal is not None:
            return self.refusal
        if isinstance(operation, InitializeState) and self._around.is_full():
            if prefix_of(operation.key) in self.rows:
                return None
            return Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this share coordinator's memory is full of states")
        return None

    # Claims

    async def _hold(self) -> None:
        while True:
            pause_ms = await self._claim_once()
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
                continue
            while not self._must_claim.is_set():
                try:
                    await asyncio.wait_for(self._must_claim.wait(), UPKEEP_INTERVAL_MS / 1000)
                except TimeoutError:
                    await self._keep_up()

    async def _claim_once(self) -> int:
        """Claims the log; returns 0, or the pause in milliseconds before it is tried again."""
        count = self._around.metrics.claims
        try:
            await self._take_over()
        except Superseded as problem:
            count["superseded"] += 1
            await self._superseded(problem.claim)
            return 1
        except (MustClaimAgain, LogTruncated) as problem:
            count["again"] += 1
            self._refuse(_loading(f"state partition {self.number} is claimed again: {problem}"), None)
            pause_ms = RETRY_MS
        except UNREADABLE as problem:
            count["refused"] += 1
            text = f"state partition {self.number} is refused: {self._log.log.at} is not a state log: {problem}"
            self._refuse(Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, text), text)
            pause_ms = REFUSED_RETRY_MS
        except UNREACHABLE as problem:
            count["unreachable"] += 1
            text = f"state partition {self.number} cannot be read from the existing cluster: {problem}"
            level = logging.WARNING if isinstance(problem, OSError) else logging.ERROR
            self._refuse(Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, text), text, level=level)
            pause_ms = RETRY_MS
        except Exception as problem:
            report_contained_bug("a claim of a state log failed with an unexpected error", problem)
            text = f"state partition {self.number} cannot be claimed: {type(problem).__name__}: {problem}"
            self._refuse(Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, text), text)
            pause_ms = REFUSED_RETRY_MS
        else:
            count["won"] += 1
            return 0
        self._claim = self._claim._replace(attempt=self._claim.attempt + 1)
        return pause_ms

    async def _take_over(self) -> None:
        """Claims the log, reads it, and serves what it holds."""
        start_offset = await self._checked_start()
        found = StateRows()
        found.ended = {} if self._has_rows else None
        try:
            await self._log.claim(self._claim, found.take)
        except NotAFencedLog as problem:
            if self._has_rows:  # what is left cannot be read, and this node has what was confirmed
                self._note_truncation(f"the log of state partition {self.number} has lost its beginning: {problem}")
                await self._log.log.delete_before(await self._log.log.offset_at(LATEST_TIMESTAMP))
                raise MustClaimAgain(str(problem)) from None
            raise
        if self._has_rows:
            await self._restore(found)
        found.ended = None
        claimed_at = self._log.mark_offset
        self.rows, self._has_rows, self._end_offset = found, True, self._log.end_offset
        self._length = LogLength(self._around.policy, start_offset, claimed_at, _now_s())
        self._is_truncated = False
        self._must_claim.clear()
        self._problem = self.refusal = None
        self._runner.replace(self._load_machine())
        self._around.check_corrupt(self.number)

    async def _checked_start(self) -> int:
        """The log's first offset; NotAFencedLog if all its records are gone, and this node does not know them."""
        start_offset = await self._log.log.offset_at(EARLIEST_TIMESTAMP)
        if start_offset and not self._has_rows and start_offset == await self._log.log.offset_at(LATEST_TIMESTAMP):
            raise NotAFencedLog(
                f"it is empty and begins at offset {start_offset}: its records were lost or removed by others. Delete "
                "the topic to begin without states"
            )
        return start_offset

    async def _restore(self, found: StateRows) -> None:
        """Appends what the log has lost of `rows`, and adds it to `found`."""
        if not self._is_truncated:
            if not is_lost(self.rows, self._end_offset, found):
                return
            self._note_truncation(f"the log of state partition {self.number} has lost confirmed records")
        turn, size = [], 0
        for record in list(restoring_records(self.rows, found)):
            turn.append(record)
            size += _size_of_encoded(record)
            if size >= TURN_BYTES_LIMIT:
                self._add(found, await self._log.append(turn), turn)
                turn, size = [], 0
        if turn:
            self._add(found, await self._log.append(turn), turn)

    async def _superseded(self, rival: Claim) -> None:
        if rival.epoch <= self._claim.epoch:  # an earlier claim of this process
            self._claim = self._claim._replace(attempt=max(rival.attempt, self._claim.attempt) + 1)
            self._refuse(_loading(f"state partition {self.number} is claimed again"), None)
            return
        self._rival = rival
        self._has_rows = False
        self.rows = StateRows()
        text = f"state partition {self.number} belongs to node {rival.node_id} since epoch {rival.epoch}"
        log.warning("%s; the catalog has named this node in epoch %d", text, self._claim.epoch)
        self._refuse(Result(ErrorCode.NOT_COORDINATOR, text), None)
        noticed_at = _now_s()
        while (self._around.heard_of_catalog_at() or noticed_at) <= noticed_at:
            await asyncio.sleep(RETRY_MS / 1000)
        self._problem = (
            f"{text}, and the catalog names this node in epoch {self._claim.epoch}: it is older than the log"
        )
        self._around.report_epoch(rival.epoch)
        await asyncio.get_running_loop().create_future()  # until the catalog gives this node a higher epoch

    def _failed(self, problem: Exception) -> KafkaError:
        """Notes that the log must be claimed again; returns the answer of operations whose outcome is unknown."""
        place = f"state partition {self.number}"
        if isinstance(problem, Superseded):
            code = ErrorCode.NOT_COORDINATOR
        elif isinstance(problem, MustClaimAgain | LogTruncated):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(problem, LogTruncated):
                self._note_truncation(str(problem))
        else:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if not isinstance(problem, (*UNREACHABLE, *UNREADABLE)):
                report_contained_bug("an append to a state log failed with an unexpected error", problem)
        if self.refusal is None:
            self.refusal = Result(code, f"{place} is claimed again: {problem}")
            self._unserved_since_s = _now_s()
        self._must_claim.set()
        return KafkaError(code, f"{place}: {problem}")

    def _refuse(self, refusal: Result, problem: str | None, *, level: int = logging.ERROR) -> None:
        """`level` is that of the problem's line: WARNING for what passes by itself, as a cluster that is away."""
        if problem is not None and problem != self._problem:
            log.log(level, "%s", problem)
        self.refusal, self._problem = refusal, problem

    def _note_truncation(self, text: str) -> None:
        log.error("%s; what this node knows is written again", text)
        self._around.metrics.truncations += 1
        self._is_truncated = True
        self._truncation = (text, _now_s() + TRUNCATION_SHOWN_MS / 1000)

    # Upkeep

    async def _keep_up(self) -> None:
        """Marks the log, writes cold states again and removes the log's beginning, where it is time."""
        length = self._length
        assert length is not None
        try:
            if length.needs_mark(self._end_offset, _now_s()):
                length.marked(await self._mark(), _now_s())
            if length.is_too_long(self._end_offset, self.rows.record_count):
                length.marked(await self._mark(), _now_s())
                before = length.cold_before(self._end_offset, self.rows.record_count)
                self._unreadable = await self._write_cold_states(before)
            deletable = length.deletable_before(self.rows.oldest_offset())
            if deletable is not None and await self._is_marked(deletable):
                length.start_offset = await self._log.log.delete_before(deletable)
            if self._unreadable is not None and self._unreadable[0] != self.rows.oldest_offset():
                self._unreadable = None
            self._note_pruning(None if self._unreadable is None else self._unreadable[1])
        except Exception as problem:
            if not isinstance(problem, (KafkaError, StorageFailure, *UNREACHABLE)):
                report_contained_bug("the upkeep of a state log failed with an unexpected error", problem)
            self._note_pruning(str(problem))

    def _note_pruning(self, problem: str | None) -> None:
        text = None if problem is None else f"the log of state partition {self.number} cannot be shortened: {problem}"
        if text is not None and self._pruning_problem is None:
            log.warning("%s", text)
        self._pruning_problem = text

    async def _is_marked(self, offset: int) -> bool:
        """Whether the log still has a mark of this owner there; if not, it has lost records and is claimed again."""
        batches = list(whole_batches((await self._log.log.read(offset, max_bytes=1)).data))
        if not batches:
            return False  # the high watermark is behind after an election (KIP-207)
        (header, data), *_ = batches
        record = control_record(data, header) if header.base_offset == offset else None
        if record is not None and record.claim.incarnation == self._claim.incarnation:
            return True
        self._failed(LogTruncated(f"the log of state partition {self.number} has no mark at offset {offset} any more"))
        return False

    async def _mark(self) -> int:
        try:
            offset = await self._log.mark()
        except Exception as problem:
            raise self._failed(problem) from problem
        self._end_offset = max(self._end_offset, offset + 1)
        return offset

    async def _write_cold_states(self, before: int) -> tuple[int, str] | None:
        """Writes the states again whose snapshots are below an offset, up to the first that cannot be read.

        Returns that one's offset and problem.
        """
        while (oldest := self.rows.oldest_offset()) is not None and oldest < before:
            pending = []
            for prefix, _ in zip(self.rows.prefixes(), range(COLD_STATES_AT_ONCE), strict=False):
                key, records, problem = self.rows.found(prefix)
                if problem is None and key is not None and isinstance(records[0], ShareSnapshot):
                    operation = SnapshotColdState(key, records[0].snapshot_epoch, len(records) - 1)
                    pending.append(self._runner.submit(operation))
            await asyncio.gather(*pending)
            if self.rows.oldest_offset() == oldest:
                return self._unreadable_state(oldest)
        return None

    def _unreadable_state(self, offset: int) -> tuple[int, str] | None:
        """The offset and the problem of the oldest state, if it cannot be read; reports it."""
        key, _, problem = self.rows.found(next(self.rows.prefixes()))
        if problem is None:
            return None
        if key is not None:
            self._around.report_corrupt(key, problem)
        return offset, f"the oldest state in it cannot be read, and stays until it is deleted: {problem}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _loading(text: str) -> Result:
    return Result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


def _size(record: Record) -> int:
    """About the bytes of a record in a batch."""
    if isinstance(record, ShareTombstone):
        return len(record.key.group_id) + 60
    leader_epochs = record.leader_epochs if isinstance(record, ShareSnapshot) else b""
    return len(record.key.group_id) + 150 + 20 * len(record.state_batches) + len(leader_epochs)


def _size_of_encoded(record: LogRecord) -> int:
    return len(record.key) + len(record.value or b"")
