"""The leader's client of the share coordinators: reads and writes of share-partition state, with retries.

Writes that become ready in the same turn of the event loop and go to the same share coordinator are sent in one
WriteShareGroupState request per group. A write is retried until it is known to be durable or refused, or until
share.coordinator.write.timeout.ms leaves too little time for another attempt. A write is idempotent, as it contains the
state and not the change.

Outcomes of a write:
- DURABLE: it is stored.
- REFUSED: no attempt can have been stored: the share coordinator refused it, or no attempt reached one in time.
- FENCED: the share-partition has a newer leader epoch or state epoch, or no state any more.
- UNKNOWN: an attempt may have been stored, or may still be. Only reading the state again can tell.
A transient error code also leaves the outcome unknown: a share coordinator that lost its lease after its fsync answers
NOT_COORDINATOR.

Every write that was begun ends with one of these, even if its share-partition is dropped meanwhile, so that its
acknowledgements get the real outcome. A read waits for a write in flight of the same share-partition, which would make
the state that was read out of date.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.leader_epochs import decode_leader_epochs
from kshare_core.log_fields import about
from kshare_core.states import RecordState
from kshare_leader.machine.state_write import StateBatch, StateWrite
from kshare_leader.share.limits import (
    RETRY_INTERVAL_MAX_MS,
    RETRY_INTERVAL_MS,
    SHARE_PARTITIONS_PER_WRITE_LIMIT,
    STATE_CALL_TIMEOUT_MS,
    WRITE_ATTEMPT_MIN_MS,
)
from kshare_leader.share.start_offset import SharePartitionState, TruncatedState, Truncation
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE, TRUNCATE_SHARE_GROUP_STATE, WRITE_SHARE_GROUP_STATE
from kshare_rpc.network import CallFailed, CallNotStarted, Channel, ChannelUnavailable

UNSENT_REMEMBERED = 100_000
"""Share-partitions of which it is remembered that a write could not be sent; one more, and all are told again."""
_TRANSIENT = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
Answer = TypeVar("Answer")
_STATES = frozenset(int(state) for state in RecordState)
_FENCED = frozenset({ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH})


class Outcome(Enum):
    """The outcome of a write; see the module docstring."""

    DURABLE = auto()
    REFUSED = auto()
    FENCED = auto()
    UNKNOWN = auto()


class WriteEnd(NamedTuple):
    """`error` is the error for waiting clients (Kafka's SharePartition.fetchPersisterError), None when durable."""

    outcome: Outcome
    error: KafkaError | None = None


class StateOwner(NamedTuple):
    """A share-partition in one leader epoch, as far as its state is loaded."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    leader_epochs: bytes
    """The log's leader epoch history, ending with `leader_epoch` unless `has_brokers_epochs`."""
    has_brokers_epochs: bool = False
    """Whether the history has the epochs of an existing cluster's brokers."""


class WriteSource(Protocol):
    """A share-partition with changes to store."""

    @property
    def key(self) -> SharePartitionKey: ...
    @property
    def state_epoch(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def leader_epochs(self) -> bytes:
        """The log's leader epoch history, ending with `leader_epoch` unless `has_brokers_epochs`."""
        ...

    @property
    def has_brokers_epochs(self) -> bool: ...

    @property
    def is_dropped(self) -> bool: ...

    def next_write(self) -> StateWrite | None: ...

    def write_ended(self, write: StateWrite, end: WriteEnd) -> None: ...


class _Attempt:
    """A write in flight, with its retries; times are the event loop's."""

    __slots__ = ("_on_ended", "attempts", "deadline", "ended", "is_ended", "may_be_stored", "source", "write")

    def __init__(
        self, source: WriteSource, write: StateWrite, deadline: float, on_ended: Callable[[_Attempt], None]
    ) -> None:
        self._on_ended = on_ended
        self.source = source
        self.write = write
        self.deadline = deadline
        self.attempts = 0
        self.may_be_stored = False
        self.is_ended = False
        self.ended: asyncio.Future[None] | None = None
        """Created by the first caller that waits for the end."""

    @property
    def latest_start(self) -> float:
        """The latest time at which it may be sent again."""
        return self.deadline - WRITE_ATTEMPT_MIN_MS / 1000

    def end(self, outcome: Outcome, error: KafkaError | None = None) -> None:
        self.is_ended = True
        self._on_ended(self)
        try:
            self.source.write_ended(self.write, WriteEnd(outcome, error))
        finally:
            if self.ended is not None and not self.ended.done():
                self.ended.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """A future that completes after the source was notified of the write's end."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return self.ended


class ShareStateStore:
    """See the module docstring. `write_timeout_ms` is share.coordinator.write.timeout.ms."""

    def __init__(
        self,
        *,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        random: random.Random,
        report: Callable[[str], None],
        write_timeout_ms: int,
    ) -> None:
        self._view = view
        self._channel = channel
        self._random = random
        self._report = report
        self._write_timeout_ms = write_timeout_ms
        self._ready: dict[SharePartitionKey, WriteSource] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._retries: dict[asyncio.TimerHandle, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._under_way: dict[SharePartitionKey, _Attempt] = {}
        self._unsent: dict[SharePartitionKey, None] = {}
        """Those of which a write that could not be sent was told, until one is stored."""
        self._stopped = False

    async def stop(self, grace_ms: int) -> None:
        """Begins no more writes, waits `grace_ms` for those in flight, then ends these as UNKNOWN."""
        self._stopped = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        if self._under_way:
            await asyncio.wait([attempt.wait() for attempt in self._under_way.values()], timeout=grace_ms / 1000)
        for timer in self._retries:
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for attempt in list(self._under_way.values()):
            self._end_unknown(attempt, "this leader is stopping")

    def _attempt_ended(self, attempt: _Attempt) -> None:
        key = attempt.source.key
        if self._under_way.get(key) is attempt:
            del self._under_way[key]

    # Reading

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> SharePartitionState:
        """Reads the stored state; retries while no share coordinator is available. Raises KafkaError otherwise."""
        while (before := self._under_way.get(key)) is not None:
            await asyncio.shield(before.wait())
        return await self.read_beside_writes(key, leader_epoch)

    async def read_beside_writes(self, key: SharePartitionKey, leader_epoch: int) -> SharePartitionState:
        """As `read`, without waiting for a write under way: the state epoch and the truncation are not changed by one.

        A share-partition in use has the next write under way before a reader is woken after the last one.
        """
        return await self._ask(key, "read", lambda address: self._read_once(address, key, leader_epoch))

    async def truncate(self, owner: StateOwner, cut: TruncatedState) -> None:
        """Durably replaces the stored state by the truncated one; waits and raises as `read`.

        The request is idempotent: a second one of the same leader epoch changes nothing.
        """
        await self._ask(owner.key, "truncated", lambda address: self._truncate_once(address, owner, cut))

    async def _ask(self, key: SharePartitionKey, what: str, once: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Calls `once` with the address of the state's share coordinator, with retries; returns its result."""
        attempts = 0
        while True:
            problem = "no live share coordinator owns its state"
            address = self._view().share_coordinator_address(key)
            if address is not None:
                try:
                    return await once(address)
                except KafkaError as error:
                    if error.code == ErrorCode.CORRUPT_MESSAGE:  # which ShareFetch can answer, unlike ShareAcknowledge
                        raise
                    if error.code not in _TRANSIENT:
                        raise _for_clients(error) from error
                    problem = str(error)
                except CallFailed as failure:
                    problem = f"{address}: {failure}"
            if attempts == 0:
                text = f"the state of share-partition {key} cannot be {what} yet, trying again: {problem}"
                about(key, self._report)(text)
            attempts += 1
            await asyncio.sleep(retry_pause_s(attempts, self._random))

    async def _read_once(self, address: str, key: SharePartitionKey, leader_epoch: int) -> SharePartitionState:
        request = messages.ReadShareGroupStateRequest(group_id=key.group_id)
        request.partitions.add(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=leader_epoch,
            owner_epoch=self._view().state_owner_epoch(key),
        )
        answer, _ = await self._channel(address).call(READ_SHARE_GROUP_STATE, request, timeout_ms=STATE_CALL_TIMEOUT_MS)
        for result in answer.results:
            if result.topic_id == key.topic_id and result.partition == key.partition:
                if result.error_code != ErrorCode.NONE:
                    raise KafkaError(_code(result.error_code), result.error_message)
                return _state_of(result)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{address} left out share-partition {key} in its response")

    async def _truncate_once(self, address: str, owner: StateOwner, cut: TruncatedState) -> None:
        key = owner.key
        request = messages.TruncateShareGroupStateRequest(group_id=key.group_id)
        partition = request.partitions.add(
            topic_id=key.topic_id,
            partition=key.partition,
            state_epoch=owner.state_epoch,
            leader_epoch=owner.leader_epoch,
            offset=cut.offset,
            start_offset=cut.start_offset,
            delivery_complete_count=cut.delivery_complete_count,
            leader_epochs=owner.leader_epochs,
            has_brokers_epochs=owner.has_brokers_epochs,
        )
        for first, last, state, delivery_count in cut.state_batches:
            partition.state_batches.add(
                first_offset=first, last_offset=last, delivery_state=state, delivery_count=delivery_count
            )
        channel = self._channel(address)
        answer, _ = await channel.call(TRUNCATE_SHARE_GROUP_STATE, request, timeout_ms=STATE_CALL_TIMEOUT_MS)
        for result in answer.results:
            if result.topic_id == key.topic_id and result.partition == key.partition:
                if result.error_code != ErrorCode.NONE:
                    raise KafkaError(_code(result.error_code), result.error_message)
                return
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{address} left out share-partition {key} in its response")

    # Writing

    def schedule(self, source: WriteSource) -> None:
        """Asks `source` for its next write at the end of this turn of the event loop, and sends it."""
        if self._stopped:
            return
        self._ready[source.key] = source
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        ready, self._ready = self._ready, {}
        deadline = asyncio.get_running_loop().time() + self._write_timeout_ms / 1000
        attempts = []
        for source in ready.values():
            write = None if source.is_dropped else source.next_write()
            if write is not None:
                attempt = self._under_way[source.key] = _Attempt(source, write, deadline, self._attempt_ended)
                attempts.append(attempt)
        self._send_all(attempts)

    def _send_all(self, attempts: Sequence[_Attempt]) -> None:
        view = self._view()
        by_target: dict[tuple[str, str], list[_Attempt]] = {}
        homeless: list[_Attempt] = []
        for attempt in attempts:
            key = attempt.source.key
            address = view.share_coordinator_address(key)
            if address is None:
                homeless.append(attempt)
            else:
                by_target.setdefault((address, key.group_id), []).append(attempt)
        loop = asyncio.get_running_loop()
        for (address, group_id), group in by_target.items():
            for start in range(0, len(group), SHARE_PARTITIONS_PER_WRITE_LIMIT):
                part = group[start : start + SHARE_PARTITIONS_PER_WRITE_LIMIT]
                task = loop.create_task(self._send(address, group_id, part))
                self._tasks[task] = None
                task.add_done_callback(partial(self._task_ended, part))
        if homeless:
            self._retry(homeless, "no live share coordinator owns the state")

    def _task_ended(self, attempts: Sequence[_Attempt], task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        report_contained_bug("a write of share-partition state failed unexpectedly", error)
        for attempt in attempts:  # the share-partition then reads the state again
            if not attempt.is_ended:
                self._end_unknown(attempt, f"an unexpected error: {error!r}")

    async def _send(self, address: str, group_id: str, attempts: Sequence[_Attempt]) -> None:
        remaining_ms = (attempts[0].deadline - asyncio.get_running_loop().time()) * 1000
        timeout_ms = max(1, min(STATE_CALL_TIMEOUT_MS, int(remaining_ms)))
        request = _write_request(group_id, attempts)
        try:
            answer, _ = await self._channel(address).call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=timeout_ms)
        except ChannelUnavailable as failure:
            if not isinstance(failure, CallNotStarted):
                for attempt in attempts:
                    attempt.may_be_stored = True
            self._retry(attempts, f"{address}: {failure}")
            return
        except CallFailed as failure:
            for attempt in attempts:
                self._end_unknown(attempt, f"{address}: {failure}")
            return
        results = {(result.topic_id, result.partition): result for result in answer.results}
        again: list[_Attempt] = []
        for attempt in attempts:
            key = attempt.source.key
            result = results.get((key.topic_id, key.partition))
            if result is not None and result.error_code == ErrorCode.NONE:
                self._unsent.pop(key, None)
                attempt.end(Outcome.DURABLE)
            elif result is None or _code(result.error_code) in _TRANSIENT:
                attempt.may_be_stored = True
                again.append(attempt)
            else:
                self._end_with_error(attempt, KafkaError(_code(result.error_code), result.error_message))
        if again:
            self._retry(again, f"{address} cannot write it now")

    def _end_with_error(self, attempt: _Attempt, error: KafkaError) -> None:
        if error.code in _FENCED or error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            outcome = Outcome.FENCED
        else:
            outcome = Outcome.UNKNOWN if attempt.may_be_stored else Outcome.REFUSED
        key = attempt.source.key
        about(key, self._report)(f"share-partition {key} cannot store its state: {error}")
        attempt.end(outcome, _for_clients(error))

    def _end_unknown(self, attempt: _Attempt, problem: str) -> None:
        key = attempt.source.key
        text = f"share-partition {key} has an unknown write outcome for its state: {problem}"
        about(key, self._report)(text)
        attempt.end(Outcome.UNKNOWN, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text))

    def _end_unsent(self, attempt: _Attempt, problem: str) -> None:
        """Of a write that no share coordinator can have received.

        It is told once: during an absence, a share-partition in use writes again every few seconds.
        """
        key = attempt.source.key
        if key not in self._unsent:
            if len(self._unsent) >= UNSENT_REMEMBERED:
                self._unsent.clear()
            self._unsent[key] = None
            about(key, self._report)(f"share-partition {key} cannot store its state for now: {problem}")
        attempt.end(Outcome.REFUSED, _for_clients(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem)))

    def _retry(self, attempts: Sequence[_Attempt], problem: str) -> None:
        loop = asyncio.get_running_loop()
        again: list[_Attempt] = []
        for attempt in attempts:
            attempt.attempts += 1
            if attempt.source.is_dropped and not attempt.may_be_stored:
                self._unsent.pop(attempt.source.key, None)
                attempt.end(Outcome.REFUSED, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem))
            elif loop.time() < attempt.latest_start:
                again.append(attempt)
            elif attempt.may_be_stored:
                self._end_unknown(attempt, problem)
            else:
                self._end_unsent(attempt, problem)
        if not again:
            return

        def send_again() -> None:
            self._retries.pop(timer, None)
            self._send_all(again)

        pause = retry_pause_s(max(attempt.attempts for attempt in again), self._random)
        latest_start = min(attempt.latest_start for attempt in again)
        timer = loop.call_at(min(loop.time() + pause, latest_start), send_again)
        self._retries[timer] = None


def retry_pause_s(attempts: int, source: random.Random) -> float:
    """The exponential back-off before the next attempt, in seconds, with jitter from half of it to the whole."""
    interval_ms = min(RETRY_INTERVAL_MS << min(attempts - 1, 10), RETRY_INTERVAL_MAX_MS)
    return interval_ms * (0.5 + source.random() / 2) / 1000


def _write_request(group_id: str, attempts: Sequence[_Attempt]) -> messages.WriteShareGroupStateRequest:
    request = messages.WriteShareGroupStateRequest(group_id=group_id)
    for attempt in attempts:
        source, write = attempt.source, attempt.write
        partition = request.partitions.add(
            topic_id=source.key.topic_id,
            partition=source.key.partition,
            state_epoch=source.state_epoch,
            leader_epoch=source.leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            leader_epochs=source.leader_epochs,
            has_brokers_epochs=source.has_brokers_epochs,
        )
        for first, last, state, delivery_count in write.state_batches:
            partition.state_batches.add(
                first_offset=first, last_offset=last, delivery_state=state, delivery_count=delivery_count
            )
    return request


def _state_of(result: messages.ReadShareGroupStateResponse.Result) -> SharePartitionState:
    batches = sorted([_state_batch(batch) for batch in result.state_batches])
    try:
        leader_epochs = decode_leader_epochs(result.leader_epochs)
    except ValueError as error:
        text = f"the share coordinator returned {error}"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error
    truncation = Truncation(result.truncation_leader_epoch, result.truncation_offset)
    return SharePartitionState(result.state_epoch, result.start_offset, batches, leader_epochs, truncation)


def _state_batch(batch: messages.StateBatch) -> StateBatch:
    if batch.delivery_state not in _STATES or batch.first_offset > batch.last_offset:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the share coordinator returned a bad state batch: {batch}")
    return StateBatch(
        batch.first_offset, batch.last_offset, RecordState(batch.delivery_state), max(batch.delivery_count, 0)
    )


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _for_clients(error: KafkaError) -> KafkaError:
    """Maps a share coordinator's error to the error for clients (Kafka's SharePartition.fetchPersisterError)."""
    if error.code in _FENCED:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code in _TRANSIENT:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
