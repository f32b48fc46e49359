"""Sender of transaction markers: WriteTxnMarkers to the leaders of all partitions of decided transactions.

Each leader gets one call at a time, with all markers, of many transactions, that queued up for it meanwhile. A
partition is done when its leader answers NONE, or when it is gone from the catalog. All other results are retried with
exponential back-off, and at once when the catalog changes. When all partitions of a transaction are done, the machine
completes it. The machine's records hold all decided transactions, so sending starts again after a restart. Writing a
marker is idempotent.

Coordinator epoch. A marker may arrive after its call was given up, even after another call completed its transaction.
If the client keeps its producer epoch (before KIP-890), such a marker could end the producer's next transaction. So
the first call takes an epoch that was never in a marker, which fences earlier incarnations. A new one is taken after
each call whose outcome is unknown. Leaders refuse older epochs (TRANSACTION_COORDINATOR_FENCED).

Groups. Some offsets in a transaction may belong to groups of other coordinators. These coordinators are told the
outcome (see `transaction_owners`) beside the markers, with the same epoch, so that their groups do not wait for a
partition without a leader. When all partitions are done and all groups told, the machine completes the transaction.

INVALID_PRODUCER_EPOCH means that the partition's log has a later epoch of the producer. The outcome can then never be
written there, nor is it needed, so the partition counts as done. Kafka's coordinator stops sending instead, and the
transactional id stays as it is until the coordinator moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_coordinator.machine.commands import CompleteTransaction, NextCoordinatorEpoch
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.ending import groups_elsewhere
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import WRITE_TXN_MARKERS
from kshare_rpc.network import CallFailed, Channel, Network

FIRST_RETRY_MS = 50
MAXIMUM_RETRY_MS = 1_000
CALL_TIMEOUT_MS = 5_000
PARTITIONS_PER_CALL = 10_000
"""Limit of partitions in a call, which holds whole markers; further markers wait for the next call. It is the limit of
leaders, and no transaction has more."""
DONE_CODES = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)
"""Codes after which a partition is done; see the module's text."""

log = logging.getLogger(__name__)

Partitions = dict[TopicPartition, None]
Marker = leader_pb2.WriteTxnMarkersRequest.Marker


@dataclass(slots=True, eq=False)
class _Ending:
    """A transaction with a decided outcome, and its partitions that are not yet done (`remaining`)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int
    remaining: Partitions
    failed: Partitions = field(default_factory=dict)
    """Partitions of `remaining` that wait for a retry."""
    notified: dict[str, None] = field(default_factory=dict)
    """Groups of other coordinators whose offsets are done."""
    telling: asyncio.Task[None] | None = None
    delay_ms: int = FIRST_RETRY_MS
    retry: asyncio.TimerHandle | None = None
    is_forgotten: bool = False
    """Whether another coordinator has the transactions now."""

    @classmethod
    def of(cls, metadata: TransactionMetadata) -> _Ending:
        return cls(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            committed=metadata.is_committed,
            transaction_version=metadata.transaction_version,
            remaining=dict(metadata.partitions),
        )


Batch = dict[_Ending, Partitions]
Tell = Callable[[TransactionMetadata, Sequence[str], int], Awaitable[Mapping[str, str]]]
"""`TransactionOwners.tell`."""


class TransactionMarkers:
    """The sender; see the module's text.

    `state` gives the machine's state; `complete` and `next_epoch` submit commands to the machine.
    """

    def __init__(
        self,
        *,
        network: Network,
        state: Callable[[], CoordinatorState],
        complete: Callable[[CompleteTransaction], asyncio.Future[bool]],
        next_epoch: Callable[[NextCoordinatorEpoch], asyncio.Future[int]],
        tell: Tell,
    ) -> None:
        self._network = network
        self._state = state
        self._complete = complete
        self._next_epoch = next_epoch
        self._tell = tell
        self._endings: dict[str, _Ending] = {}
        self._queues: dict[str, Batch] = {}
        """Partitions for the next calls, by leader address."""
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._channels: dict[str, Channel] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._epoch: int | None = None
        self._new_epoch: asyncio.Future[int] | None = None
        self._stopped = False

    def send(self, transactional_id: str) -> None:
        """Starts sending the markers of a transaction whose outcome is decided."""
        ending = _Ending.of(self._state().transactions[transactional_id])
        if (former := self._endings.get(transactional_id)) is not None:
            self._forget(former)
        self._endings[transactional_id] = ending
        self._tell_groups(ending)
        self._route(ending, ending.remaining)

    def catalog_changed(self) -> None:
        """Retries all failed partitions now; closes channels to leaders that are gone."""
        for ending in list(self._endings.values()):
            ending.delay_ms = FIRST_RETRY_MS
            self._try_again(ending)
        live = {node.rpc_address for node in self._state().nodes.values()}
        for address in [address for address in self._channels if address not in live | self._workers.keys()]:
            task = asyncio.get_running_loop().create_task(self._channels.pop(address).close())
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))

    def forget(self) -> None:
        """Stops all sending: another coordinator has the transactions now and continues."""
        for ending in self._endings.values():
            self._forget(ending)
        self._endings.clear()
        self._queues.clear()
        self._epoch = None

    def _forget(self, ending: _Ending) -> None:
        ending.is_forgotten = True
        self._end_retry(ending)
        if ending.telling is not None:
            ending.telling.cancel()

    async def stop(self) -> None:
        self._stopped = True
        telling = [ending.telling for ending in self._endings.values() if ending.telling is not None]
        self.forget()
        tasks = [*self._workers.values(), *self._closing, *telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    # Routing of markers

    def _route(self, ending: _Ending, partitions: Iterable[TopicPartition]) -> None:
        """Queues each partition for its leader; deleted partitions are done, those without a leader wait."""
        failed: Partitions = {}
        for partition in list(partitions):
            try:
                exists, address = self._leader_of(partition)
            except StorageFailure:  # the state is being reloaded
                exists, address = True, None
            if not exists:
                del ending.remaining[partition]
            elif address is None:
                failed[partition] = None
            else:
                self._queues.setdefault(address, {}).setdefault(ending, {})[partition] = None
                self._ensure_worker(address)
        self._settle(ending, failed, f"{len(failed)} of its partitions have no live leader")

    def _leader_of(self, partition: TopicPartition) -> tuple[bool, str | None]:
        """Whether the partition exists, and the address of its leader if the leader is live."""
        state = self._state()
        topic = state.topics.get(partition.topic_id)
        if topic is None or partition.partition >= len(topic.placements):
            return False, None
        node = state.nodes.get((pb.ROLE_LEADER, topic.placements[partition.partition].leader_node_id))
        return True, node.rpc_address if node else None

    def _settle(self, ending: _Ending, failed: Partitions, problem: str) -> None:
        """Finishes the ending if no partition remains; schedules a retry of failed partitions otherwise."""
        if not ending.remaining:
            self._finish(ending)
            return
        if not failed:
            return
        ending.failed.update(failed)
        if ending.retry is None and not self._stopped and not ending.is_forgotten:
            log.warning(
                "the markers of transaction %s of producer %d are not complete, retrying in %d ms: %s",
                ending.transactional_id,
                ending.producer_id,
                ending.delay_ms,
                problem,
            )
            self._retry_later(ending)

    def _end_retry(self, ending: _Ending) -> None:
        """Nothing is tried again for an ending that is over: the id may have another one, with the same epoch."""
        if ending.retry is not None:
            ending.retry.cancel()
            ending.retry = None

    def _try_again(self, ending: _Ending) -> None:
        if ending.retry is None:
            return
        self._end_retry(ending)
        failed, ending.failed = ending.failed, {}
        if ending.remaining:
            self._tell_groups(ending)
            self._route(ending, failed)
        else:
            self._finish(ending)

    def _finish(self, ending: _Ending) -> None:
        """After all partitions are done: completes the transaction, if all groups of other coordinators are told."""
        if self._stopped or ending.is_forgotten or not self._tell_groups(ending):
            return
        self._end_retry(ending)
        command = CompleteTransaction(
            transactional_id=ending.transactional_id,
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            notified_group_ids=tuple(ending.notified),
        )
        self._complete(command).add_done_callback(lambda done: self._finished(ending, done))

    def _finished(self, ending: _Ending, done: asyncio.Future[bool]) -> None:
        """Removes a completed ending, unless the next transaction of the id is already ending and has replaced it."""
        if done.cancelled():
            return
        failure = done.exception()  # also of an ending that was forgotten meanwhile, or it counts as never looked at
        if self._stopped or ending.is_forgotten:
            return
        if failure is None:
            if self._endings.get(ending.transactional_id) is ending:
                del self._endings[ending.transactional_id]
            return
        log.error(
            "the completion of transaction %s could not be written, retrying: %s", ending.transactional_id, failure
        )
        self._end_retry(ending)
        ending.retry = asyncio.get_running_loop().call_later(MAXIMUM_RETRY_MS / 1000, self._try_again, ending)

    # Groups of other coordinators

    def _tell_groups(self, ending: _Ending) -> bool:
        """Whether all are told; if not, they are being told now, or will be in a while."""
        if self._stopped or ending.is_forgotten or ending.telling is not None:
            return False
        try:
            unnotified = self._unnotified(ending)
        except StorageFailure:  # the state is being reloaded
            self._retry_later(ending)
            return False
        if unnotified:
            work: Coroutine[None, None, None] = self._notify_groups(ending, unnotified)
            ending.telling = asyncio.get_running_loop().create_task(work)
        return not unnotified

    def _unnotified(self, ending: _Ending) -> list[str]:
        state = self._state()
        metadata = state.transactions.get(ending.transactional_id)
        if metadata is None:
            return []
        return [group_id for group_id in groups_elsewhere(state, metadata) if group_id not in ending.notified]

    async def _notify_groups(self, ending: _Ending, group_ids: list[str]) -> None:
        try:
            epoch = await self._coordinator_epoch()
            problems = await self._tell(self._state().transactions[ending.transactional_id], group_ids, epoch)
        except CallFailed as failure:
            self._epoch = None
            problems = dict.fromkeys(group_ids, f"{failure}")
        except (KafkaError, StorageFailure) as failure:
            problems = dict.fromkeys(group_ids, f"no coordinator epoch: {failure}")
        ending.telling = None
        ending.notified.update({group_id: None for group_id in group_ids if group_id not in problems})
        if not problems:
            if not ending.remaining:
                self._finish(ending)
        elif not (self._stopped or ending.is_forgotten):
            text = "the end of transaction %s has not reached all of its groups, retrying in %d ms: %s"
            log.warning(text, ending.transactional_id, ending.delay_ms, next(iter(problems.values())))
            self._retry_later(ending)

    def _retry_later(self, ending: _Ending) -> None:
        if ending.retry is not None:
            return
        loop = asyncio.get_running_loop()
        ending.retry = loop.call_later(ending.delay_ms / 1000, self._try_again, ending)
        ending.delay_ms = min(2 * ending.delay_ms, MAXIMUM_RETRY_MS)

    # Calls

    def _ensure_worker(self, address: str) -> None:
        if address not in self._workers and not self._stopped:
            work: Coroutine[None, None, None] = self._work(address)
            task = asyncio.get_running_loop().create_task(work, name=f"transaction-markers {address}")
            self._workers[address] = task

    async def _work(self, address: str) -> None:
        try:
            while address in self._queues:
                await self._send_next(address)
        finally:
            del self._workers[address]

    async def _send_next(self, address: str) -> None:
        batch: Batch = {}
        try:
            epoch = await self._coordinator_epoch()
            batch = self._take(address)
            if not batch:
                return
            request = leader_pb2.WriteTxnMarkersRequest(markers=_markers(batch, epoch))
            answer, _ = await self._channel(address).call(WRITE_TXN_MARKERS, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed as failure:
            self._epoch = None
            self._fail(batch, f"leader {address}: {failure}")
        except (KafkaError, StorageFailure) as failure:
            self._fail(self._take(address), f"no coordinator epoch: {failure}")
        else:
            self._apply(address, batch, answer)

    def _take(self, address: str) -> Batch:
        """The next call's partitions; empty if `forget` was called meanwhile."""
        queue = self._queues.get(address)
        batch: Batch = {}
        if queue is None:
            return batch
        count = 0
        while queue:
            ending, partitions = next(iter(queue.items()))
            count += len(partitions)
            if batch and count > PARTITIONS_PER_CALL:
                break
            batch[ending] = queue.pop(ending)
        if not queue:
            del self._queues[address]
        return batch

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        return self._channels[address]

    async def _coordinator_epoch(self) -> int:
        """The epoch for calls; StorageFailure if a new one could not be written."""
        if self._epoch is not None:
            return self._epoch
        if self._new_epoch is None:
            self._new_epoch = self._next_epoch(NextCoordinatorEpoch())
            self._new_epoch.add_done_callback(self._take_epoch)
        return await asyncio.shield(self._new_epoch)

    def _take_epoch(self, taken: asyncio.Future[int]) -> None:
        """Stores a new epoch before tasks that wait for it continue: callbacks run in the order they were added."""
        self._new_epoch = None
        if not taken.cancelled() and taken.exception() is None:
            self._epoch = taken.result()

    def _apply(self, address: str, batch: Batch, answer: leader_pb2.WriteTxnMarkersResponse) -> None:
        codes = {
            (result.producer_id, TopicPartition(result.topic_id, result.partition)): result.error_code
            for result in answer.results
        }
        for ending, partitions in batch.items():
            failed: Partitions = {}
            problem = ""
            for partition in partitions:
                code = codes.get((ending.producer_id, partition), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code in DONE_CODES:
                    del ending.remaining[partition]
                else:
                    failed[partition] = None
                    problem = f"leader {address} answered error {code} for partition {_text(partition)}"
                if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    self._epoch = None  # the retry needs a newer one
                if code == ErrorCode.INVALID_PRODUCER_EPOCH:
                    text = "transaction %s: no marker was written to %s, which has a later epoch of producer %d"
                    log.error(text, ending.transactional_id, _text(partition), ending.producer_id)
            self._settle(ending, failed, problem)

    def _fail(self, batch: Batch, problem: str) -> None:
        for ending, partitions in batch.items():
            self._settle(ending, partitions, problem)


def _text(partition: TopicPartition) -> str:
    return f"{topic_id_text(partition.topic_id)}-{partition.partition}"


def _markers(batch: Batch, coordinator_epoch: int) -> list[Marker]:
    return [
        Marker(
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            committed=ending.committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=ending.transaction_version,
            partitions=[
                leader_pb2.WriteTxnMarkersRequest.Partition(topic_id=topic_id, partition=partition)
                for topic_id, partition in partitions
            ],
        )
        for ending, partitions in batch.items()
    ]
