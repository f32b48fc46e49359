"""Pending work of share groups at share coordinators and leaders: initializing, altering and deleting state.

These are steps b and c of the creation flow, and the second stage of alterations and deletions of state.

Each group with pending work has one task. So a share-partition is never initialized twice at the same time
(KAFKA-19204), nor initialized while it is being deleted. A round sends concurrent requests to all share coordinators
that own state of the group, and hands their answers to the machine. Failures are retried with exponential back-off, and
at once when the nodes change. The back-off stays short while share coordinators answer that they are not ready yet. All
pending work is in the machine's records, so rounds continue after a restart.

A leader may still have state in memory that an administrator replaced or deleted. Such a share-partition is done only
when its leader has dropped it, too. A leader that is not in the catalog has none: its lease ran out.

FENCED_STATE_EPOCH means that newer state exists, of which this coordinator has no record. Initializing it again would
lose the group's position, so the state is kept: the group takes it over, with a group epoch above its state epoch.
If an administrator chose the position, the state is replaced (see `machine.share_partitions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from kshare_coordinator.machine.commands import CompleteGroupState, Initialized
from kshare_coordinator.machine.groups.share.group import ShareGroup
from kshare_coordinator.machine.groups.share.offsets import leader_address, share_coordinator_address, state_owner_epoch
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_core.states import MAX_STATE_EPOCH
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb
from kshare_rpc.generated.methods import (
    DELETE_SHARE_GROUP_STATE,
    DROP_SHARE_PARTITIONS,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
)
from kshare_rpc.network import CallFailed, Channel, Network

FIRST_RETRY_MS = 100
NOT_READY_RETRY_MAX_MS = 500
"""The longest back-off after answers that say that a share coordinator will soon be ready. No node changes then."""
NOT_READY_CODES = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
CALL_TIMEOUT_MS = 5_000
SHARE_PARTITIONS_PER_CALL = 1_000
GROUPS_AT_ONCE = 64
NO_LEADER_EPOCH = -1
DELETED_CODES = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""Codes of DeleteShareGroupState that mean that no state is left."""

log = logging.getLogger(__name__)

InitializePartition = share_pb.InitializeShareGroupStateRequest.SharePartition
DeletePartition = share_pb.DeleteShareGroupStateRequest.SharePartition
SummaryPartition = share_pb.ReadShareGroupStateSummaryRequest.SharePartition


@dataclass(slots=True)
class _Request:
    """The requests of one round to one share coordinator."""

    initialize: list[InitializePartition] = field(default_factory=list)
    delete: list[DeletePartition] = field(default_factory=list)


class _Problem(NamedTuple):
    """Why work was left undone; `is_passing`: a share coordinator answered one of NOT_READY_CODES."""

    text: str
    is_passing: bool = False


class _Outcome(NamedTuple):
    initialized: list[Initialized]
    deleted: list[tuple[bytes, int]]
    problem: _Problem | None


class GroupStateKeeper:
    """The tasks of all groups with pending work; see the module's text.

    `state` gives the machine's state, `complete` hands a round's result to the machine.
    """

    def __init__(
        self,
        *,
        network: Network,
        state: Callable[[], CoordinatorState],
        complete: Callable[[CompleteGroupState], Awaitable[None]],
        retry_interval_ms: int,
        sender: bytes,
    ) -> None:
        """`sender` tells this process from all others, so that share coordinators know the order of its requests."""
        self._network = network
        self._sender = sender
        self._sent_numbers = count(1)
        self._state = state
        self._complete = complete
        self._retry_interval_ms = retry_interval_ms
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._nodes_changed = asyncio.Event()
        self._progress = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._channels: dict[str, Channel] = {}
        self._rounds = asyncio.Semaphore(GROUPS_AT_ONCE)

    def work(self, group_id: str, *, is_news: bool = True) -> None:
        """Starts the group's task unless it runs; new pending work (`is_news`) ends its back-off."""
        if is_news:
            self._news.setdefault(group_id, asyncio.Event()).set()
        if group_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(group_id), name=f"group-state {group_id}")
            self._tasks[group_id] = task

    async def wait_until(self, is_done: Callable[[], bool], *, timeout_ms: int) -> bool:
        """Whether `is_done` became true in time; it is called after each round of any group."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not is_done():
                    await self._progress.wait()
        except TimeoutError:
            return is_done()
        return True

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Stops the work of groups that another coordinator has gained and continues; wakes `wait_until`."""
        for group_id in [group_id for group_id in self._tasks if is_meant(group_id)]:
            task = self._tasks.pop(group_id)
            task.cancel()
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))
            self._problems.pop(group_id, None)
            self._news.pop(group_id, None)
        self._wake()

    def problem(self, group_id: str) -> str | None:
        """Why a group's newest round left work undone; None if no problem is known."""
        return self._problems.get(group_id)

    def nodes_changed(self) -> None:
        """Ends all back-offs; closes channels to nodes that are gone."""
        self._nodes_changed.set()
        self._nodes_changed = asyncio.Event()
        live = {node.rpc_address for node in self._state().nodes.values()}
        for address in [address for address in self._channels if address not in live]:
            task = asyncio.get_running_loop().create_task(self._channels.pop(address).close())
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def _run(self, group_id: str) -> None:
        delay_ms = FIRST_RETRY_MS
        try:
            while True:
                changed = self._nodes_changed
                news = self._news.setdefault(group_id, asyncio.Event())
                news.clear()
                progress, problem, is_pending = await self._attempt(group_id)
                self._note(group_id, None if problem is None else problem.text)
                if not is_pending:
                    return
                if progress:
                    delay_ms = FIRST_RETRY_MS
                    continue
                longest_ms = self._retry_interval_ms
                if problem is not None and problem.is_passing:
                    longest_ms = min(longest_ms, NOT_READY_RETRY_MAX_MS)
                delay_ms = min(delay_ms, longest_ms)
                self._warn(group_id, delay_ms, problem)
                if await _is_any_set_within((changed, news), delay_ms):
                    delay_ms = FIRST_RETRY_MS
                else:
                    delay_ms *= 2
        finally:
            if self._tasks.get(group_id) is asyncio.current_task():
                del self._tasks[group_id]
                self._problems.pop(group_id, None)
                self._news.pop(group_id, None)

    def _warn(self, group_id: str, delay_ms: int, problem: _Problem | None) -> None:
        """Logs a failure; one that passes is logged before the first short back-offs only."""
        if problem is None or not problem.is_passing or delay_ms < NOT_READY_RETRY_MAX_MS:
            text = None if problem is None else problem.text
            log.warning("state of group %s is still pending, retrying in %d ms: %s", group_id, delay_ms, text)

    def _note(self, group_id: str, problem: str | None) -> None:
        if problem is None:
            self._problems.pop(group_id, None)
        else:
            self._problems[group_id] = problem
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _attempt(self, group_id: str) -> tuple[bool, _Problem | None, bool]:
        """Runs a round: whether it made progress, its problem, and whether any work was pending."""
        async with self._rounds:
            try:
                group = self._state().share_groups.get(group_id)
                if group is None or not group.partitions.is_pending:
                    return False, None, False
                outcome = await self._round(group)
                if not (outcome.initialized or outcome.deleted):
                    return False, outcome.problem, True
                await self._complete(
                    CompleteGroupState(
                        group_id=group_id,
                        initialized=tuple(outcome.initialized),
                        deleted=tuple(outcome.deleted),
                    )
                )
            except (KafkaError, StorageFailure) as failure:  # KafkaError: another group of the same turn was lost
                return False, _Problem(str(failure)), True
            return True, outcome.problem, True

    async def _round(self, group: ShareGroup) -> _Outcome:
        requests, unowned = self._requests(group)
        outcomes = await asyncio.gather(
            *(self._ask(group.group_id, address, request) for address, request in sorted(requests.items()))
        )
        problems = [outcome.problem for outcome in outcomes if outcome.problem]
        if unowned:
            problems.append(_Problem(f"no live share coordinator owns the state of {unowned} of its share-partitions"))
        initialized = [result for outcome in outcomes for result in outcome.initialized]
        deleted = [pair for outcome in outcomes for pair in outcome.deleted]
        replaced = [*_alterations(group, initialized), *(TopicPartition(*pair) for pair in deleted)]
        held = await self._drop_at_leaders(group.group_id, replaced, problems)
        return _Outcome(
            initialized=[one for one in initialized if TopicPartition(one.topic_id, one.partition) not in held],
            deleted=[pair for pair in deleted if TopicPartition(*pair) not in held],
            problem=_joined(problems),
        )

    async def _drop_at_leaders(
        self, group_id: str, keys: Iterable[TopicPartition], problems: list[_Problem]
    ) -> dict[TopicPartition, None]:
        """Has leaders drop these share-partitions; returns those that a leader may still hold with their old state."""
        by_address: dict[str, list[TopicPartition]] = {}
        for key in dict.fromkeys(keys):
            address = leader_address(self._state(), key)
            if address is not None:
                by_address.setdefault(address, []).append(key)
        failures = await asyncio.gather(
            *(self._drop(group_id, address, held) for address, held in sorted(by_address.items()))
        )
        problems += [_Problem(failure) for failure in failures if failure]
        return {
            key: None
            for (_, held), failure in zip(sorted(by_address.items()), failures, strict=True)
            if failure
            for key in held
        }

    async def _drop(self, group_id: str, address: str, keys: list[TopicPartition]) -> str | None:
        channel = self._channel(address)
        try:
            for first in range(0, len(keys), SHARE_PARTITIONS_PER_CALL):
                request = leader_pb2.DropSharePartitionsRequest(group_id=group_id)
                for key in keys[first : first + SHARE_PARTITIONS_PER_CALL]:
                    request.partitions.add(topic_id=key.topic_id, partition=key.partition)
                await channel.call(DROP_SHARE_PARTITIONS, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed as failure:
            return f"leader {address}: {failure or type(failure).__name__}"
        return None

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        return self._channels[address]

    def _requests(self, group: ShareGroup) -> tuple[dict[str, _Request], int]:
        """A round's requests by share coordinator address, and the number of share-partitions without a live owner.

        A share-partition whose old state is still to be deleted is initialized in a later round.
        """
        requests: dict[str, _Request] = {}
        unowned = 0
        deleting = group.partitions.deleting
        for entry in group.partitions.initializing:
            old = deleting[entry.topic_id].partitions if entry.topic_id in deleting else ()
            for partition in entry.partitions:
                if partition in old:
                    continue
                address = self._owner(group.group_id, entry.topic_id, partition)
                if address is None:
                    unowned += 1
                    continue
                requests.setdefault(address, _Request()).initialize.append(
                    InitializePartition(
                        topic_id=entry.topic_id,
                        partition=partition,
                        state_epoch=entry.state_epoch,
                        start_offset=entry.start_offset,
                    )
                )
        for topic_id, topic in sorted(deleting.items()):
            for partition in topic.partitions:
                address = self._owner(group.group_id, topic_id, partition)
                if address is None:
                    unowned += 1
                    continue
                deletion = DeletePartition(topic_id=topic_id, partition=partition)
                requests.setdefault(address, _Request()).delete.append(deletion)
        return requests, unowned

    def _owner(self, group_id: str, topic_id: bytes, partition: int) -> str | None:
        return share_coordinator_address(self._state(), group_id, TopicPartition(topic_id, partition))

    async def _ask(self, group_id: str, address: str, request: _Request) -> _Outcome:
        """One share coordinator's part of a round; what it completed before a call failed counts."""
        outcome = _Outcome([], [], None)
        channel = self._channel(address)
        try:
            problems = await self._delete(channel, group_id, request.delete, outcome.deleted)
            problems += await self._initialize(channel, group_id, request.initialize, outcome.initialized)
        except CallFailed as failure:
            problems = [_Problem(str(failure) or type(failure).__name__)]
        if not problems:
            return outcome
        text = f"share coordinator {address}: {problems[0].text}"
        return outcome._replace(problem=_Problem(text, any(problem.is_passing for problem in problems)))

    async def _initialize(
        self, channel: Channel, group_id: str, partitions: list[InitializePartition], done: list[Initialized]
    ) -> list[_Problem]:
        problems: list[_Problem] = []
        for first in range(0, len(partitions), SHARE_PARTITIONS_PER_CALL):
            part = partitions[first : first + SHARE_PARTITIONS_PER_CALL]
            request = share_pb.InitializeShareGroupStateRequest(
                group_id=group_id, partitions=part, sender=self._sender, sent_number=next(self._sent_numbers)
            )
            answer, _ = await channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=CALL_TIMEOUT_MS)
            epochs = {(entry.topic_id, entry.partition): entry.state_epoch for entry in part}
            fenced: list[tuple[bytes, int]] = []
            for result in answer.results:
                key = (result.topic_id, result.partition)
                if result.error_code == ErrorCode.NONE and key in epochs:
                    done.append(Initialized(topic_id=key[0], partition=key[1], state_epoch=epochs[key]))
                elif result.error_code == ErrorCode.FENCED_STATE_EPOCH and key in epochs:
                    fenced.append(key)
                else:
                    problems.append(_refusal(result))
            if fenced:
                problems += await self._take_over(channel, group_id, epochs, fenced, done)
        return problems

    async def _take_over(
        self,
        channel: Channel,
        group_id: str,
        epochs: dict[tuple[bytes, int], int],
        fenced: Iterable[tuple[bytes, int]],
        done: list[Initialized],
    ) -> list[_Problem]:
        """Reads the state epochs of share-partitions that have newer state; see the module's text."""
        wanted = [
            SummaryPartition(
                topic_id=topic_id,
                partition=partition,
                leader_epoch=NO_LEADER_EPOCH,
                owner_epoch=state_owner_epoch(self._state(), group_id, TopicPartition(topic_id, partition)),
            )
            for topic_id, partition in fenced
        ]
        request = share_pb.ReadShareGroupStateSummaryRequest(group_id=group_id, partitions=wanted)
        answer, _ = await channel.call(READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=CALL_TIMEOUT_MS)
        problems: list[_Problem] = []
        for result in answer.results:
            key = (result.topic_id, result.partition)
            if result.error_code or key not in epochs:
                problems.append(_refusal(result))
                continue
            if result.state_epoch > MAX_STATE_EPOCH:  # stored by an older version for a client (key 83)
                text = (
                    f"partition {result.partition}: its state has state epoch {result.state_epoch}, above which no "
                    f"group can go on (at most {MAX_STATE_EPOCH}). Delete the state, with key 86 or with its group"
                )
                problems.append(_Problem(text))
                continue
            log.warning(
                "group %s adopts the stored state of partition %d: its state epoch %d is newer than the group's %d",
                group_id,
                result.partition,
                result.state_epoch,
                epochs[key],
            )
            done.append(
                Initialized(
                    topic_id=result.topic_id,
                    partition=result.partition,
                    state_epoch=epochs[key],
                    existing_state_epoch=result.state_epoch,
                )
            )
        return problems

    async def _delete(
        self, channel: Channel, group_id: str, partitions: list[DeletePartition], done: list[tuple[bytes, int]]
    ) -> list[_Problem]:
        problems: list[_Problem] = []
        for first in range(0, len(partitions), SHARE_PARTITIONS_PER_CALL):
            part = partitions[first : first + SHARE_PARTITIONS_PER_CALL]
            request = share_pb.DeleteShareGroupStateRequest(
                group_id=group_id, partitions=part, sender=self._sender, sent_number=next(self._sent_numbers)
            )
            answer, _ = await channel.call(DELETE_SHARE_GROUP_STATE, request, timeout_ms=CALL_TIMEOUT_MS)
            for result in answer.results:
                if result.error_code in DELETED_CODES:
                    done.append((result.topic_id, result.partition))
                else:
                    problems.append(_refusal(result))
        return problems


def _alterations(group: ShareGroup, initialized: Iterable[Initialized]) -> list[TopicPartition]:
    """Those of `initialized` whose start offset an administrator chose."""
    altered = {
        (entry.topic_id, partition, entry.state_epoch)
        for entry in group.partitions.initializing
        if entry.is_alteration
        for partition in entry.partitions
    }
    return [
        TopicPartition(one.topic_id, one.partition)
        for one in initialized
        if (one.topic_id, one.partition, one.state_epoch) in altered and one.existing_state_epoch is None
    ]


def _refusal(result: share_pb.SharePartitionResult | share_pb.ReadShareGroupStateSummaryResponse.Result) -> _Problem:
    text = f"partition {result.partition}: error {result.error_code} {result.error_message}".rstrip()
    return _Problem(text, result.error_code in NOT_READY_CODES)


def _joined(problems: Sequence[_Problem]) -> _Problem | None:
    if not problems:
        return None
    return _Problem("; ".join(problem.text for problem in problems), any(problem.is_passing for problem in problems))


async def _is_any_set_within(events: Iterable[asyncio.Event], timeout_ms: int) -> bool:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
