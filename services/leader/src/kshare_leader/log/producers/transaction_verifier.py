"""Verification of transactional appends: each transaction's first batch in a partition waits for the coordinator.

KIP-890, after AddPartitionsToTxnManager and ReplicaManager.handleProduceAppend of Kafka 4.3. A batch whose transaction
is open in the partition is appended at once. Otherwise AddPartitionsToTxn asks the coordinator whether the partition is
part of the producer's ongoing transaction, or adds it to that (version 2). The waiting batches are appended with the
answer.

**One look-up for each transactional id**, one call at a time; a call carries all look-ups that are ready, so the first
turn's batches share a call. Batches of one partition keep their order: those that come while the look-up is in flight
wait behind it, and all of them are appended in the turn of the answer. An answer to a call from before a marker does
not count for a batch that came after the marker: that batch is looked up again. A newer epoch of the producer ends the
wait of an older one (INVALID_PRODUCER_EPOCH).

**Errors.** A failure that says nothing about the transaction (the coordinator cannot be reached, is loading, or another
transaction is ending) is NOT_ENOUGH_REPLICAS, which producers retry. A producer of version 2 handles
CONCURRENT_TRANSACTIONS itself, after the leader retried for add.partitions.to.txn.retry.backoff.max.ms. With
transaction.partition.verification.enable=false, batches of producers before version 2 are appended without a look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.producers.refused_firsts import ANY_EPOCH
from kshare_leader.log.producers.state import TransactionalAppend
from kshare_leader.log.producers.verifications import Verification
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import ADD_PARTITIONS_TO_TXN
from kshare_rpc.network import CallFailed, Channel
from kshare_runtime.ports import Clock
from kshare_wire.record_batches import BatchHeader, read_header, read_produced_batch

WAITING_LIMIT = 10_000
"""Batches that wait for the coordinator; more get NOT_ENOUGH_REPLICAS."""
CALL_TIMEOUT_MS = 5_000

_SAYS_NOTHING = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class _Waiting(NamedTuple):
    """A batch that waits for its look-up; `future` is answered by its append."""

    records: memoryview
    verification: Verification
    future: asyncio.Future[Appended]
    leader_epoch: int


class _Asked(NamedTuple):
    """A partition of a call, and its newest verification when the call was sent."""

    key: TopicPartition
    verification: Verification


@dataclass(slots=True, eq=False)
class _LookUp:
    """The batches that wait for one producer's transaction, by partition, in order."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds_partitions: bool
    give_up_at: float
    """Loop time until which CONCURRENT_TRANSACTIONS is retried."""
    waiting: dict[TopicPartition, list[_Waiting]] = field(default_factory=dict)
    asked: dict[tuple[str, int], _Asked] = field(default_factory=dict)
    """The partitions of the call in flight, by topic name and partition."""

    def answered(self, asked: _Asked) -> int:
        """How many waiting batches of the partition the answer decides: all up to the last one of its verification."""
        waiting = self.waiting.get(asked.key, [])
        numbers = [number for number, batch in enumerate(waiting, 1) if batch.verification is asked.verification]
        return numbers[-1] if numbers else 0

    def is_of(self, header: BatchHeader, adds_partitions: bool) -> bool:
        return (self.producer_id, self.producer_epoch, self.adds_partitions) == (
            header.producer_id,
            header.producer_epoch,
            adds_partitions,
        )


class TransactionVerifier:
    """The queue of transactional appends and their look-ups; the module's docstring has the rules."""

    def __init__(
        self, *, logs: PartitionLogs, coordinator: Callable[[], Channel], clock: Clock, configs: Configs
    ) -> None:
        self._logs = logs
        self._coordinator = coordinator
        self._clock = clock
        self._configs = configs
        self._look_ups: dict[str, _LookUp] = {}
        self._ready: dict[str, _LookUp] = {}
        self._back_off: dict[asyncio.TimerHandle, None] = {}
        self._waiting_count = 0
        self._sender: asyncio.Task[None] | None = None

    def append(
        self,
        key: TopicPartition,
        records: memoryview,
        *,
        transactional_id: str,
        adds_partition: bool,
        leader_epoch: int = ANY_EPOCH,
    ) -> asyncio.Future[Appended]:
        """As `PartitionLogs.append`, for a request with a transactional id."""
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            header = read_header(records)
            verification = self._verification(key, header, records, adds_partition)
            if verification is None or verification.confirms(header.producer_epoch):
                self._append(key, records, verification, future, leader_epoch)
            else:
                waiting = _Waiting(records, verification, future, leader_epoch)
                self._wait(key, header, transactional_id, adds_partition, waiting)
        except KafkaError as error:
            self._logs.note_refused(key, records, error)
            future.set_exception(error)
        return future

    async def stop(self) -> None:
        """Refuses the waiting batches with NOT_LEADER_OR_FOLLOWER."""
        for handle in self._back_off:
            handle.cancel()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader is stopping")
        for look_up in list(self._look_ups.values()):
            self._refuse_all(look_up, list(look_up.waiting), error)

    def _verification(
        self, key: TopicPartition, header: BatchHeader, records: memoryview, adds_partition: bool
    ) -> Verification | None:
        """The verification that the batch needs; None where it needs none, or the log will refuse the batch anyway."""
        if not header.is_transactional or not header.has_producer_id:
            return None
        if not adds_partition and not self._is_required():
            return None
        log = self._logs.lookup(key)
        if log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
            return None
        if log.producers.has(header):  # of a transaction that has ended; its sequence must not count for the next one
            return None
        read_produced_batch(records)  # a damaged sequence must not count as one that was seen
        return log.producers.begin_verification(
            header.producer_id,
            producer_epoch=header.producer_epoch,
            sequence=header.base_sequence,
            adds_partition=adds_partition,
            now_ms=self._clock.now_ms(),
        )

    def _is_required(self) -> bool:
        return self._configs.boolean("transaction.partition.verification.enable")

    def _append(
        self,
        key: TopicPartition,
        records: memoryview,
        verification: Verification | None,
        future: asyncio.Future[Appended],
        leader_epoch: int,
    ) -> None:
        transactional = TransactionalAppend(verification, self._is_required())
        self._logs.append(key, records, transactional=transactional, future=future, leader_epoch=leader_epoch)

    # waiting

    def _wait(
        self,
        key: TopicPartition,
        header: BatchHeader,
        transactional_id: str,
        adds_partition: bool,
        waiting: _Waiting,
    ) -> None:
        if self._waiting_count >= WAITING_LIMIT:
            text = f"more than {WAITING_LIMIT} batches wait for the coordinator to confirm their transactions"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        look_up = self._look_ups.get(transactional_id)
        if look_up is not None and not look_up.is_of(header, adds_partition):
            self._end_older(look_up, header)
            look_up = None
        if look_up is None:
            look_up = _LookUp(
                transactional_id,
                header.producer_id,
                header.producer_epoch,
                adds_partition,
                asyncio.get_running_loop().time() + self._retry_limit_ms() / 1000,
            )
            self._look_ups[transactional_id] = look_up
            self._make_ready(look_up)
        self._waiting_count += 1
        look_up.waiting.setdefault(key, []).append(waiting)

    def _end_older(self, look_up: _LookUp, header: BatchHeader) -> None:
        """Ends an older look-up of the same transactional id; KafkaError where the pending one is not older."""
        if header.producer_epoch < look_up.producer_epoch:
            text = f"a batch with epoch {look_up.producer_epoch} of producer {header.producer_id} is already waiting"
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        if header.producer_epoch == look_up.producer_epoch:
            text = f"{look_up.transactional_id} is being verified for producer {look_up.producer_id}; try again"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        text = f"epoch {header.producer_epoch} of producer {header.producer_id} has arrived in the meantime"
        self._refuse_all(look_up, list(look_up.waiting), KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text))

    def _retry_limit_ms(self) -> int:
        longest_ms = self._configs.integer("add.partitions.to.txn.retry.backoff.max.ms")
        return min(longest_ms, self._configs.integer("request.timeout.ms"))

    def _take(self, look_up: _LookUp, key: TopicPartition, count: int) -> list[_Waiting]:
        """Removes the first `count` waiting batches of the partition; a look-up without batches is removed too."""
        waiting = look_up.waiting.pop(key, [])
        if waiting[count:]:
            look_up.waiting[key] = waiting[count:]
        taken = waiting[:count]
        self._waiting_count -= len(taken)
        if not look_up.waiting and self._look_ups.get(look_up.transactional_id) is look_up:
            del self._look_ups[look_up.transactional_id]
            self._ready.pop(look_up.transactional_id, None)
        return taken

    def _refuse(self, look_up: _LookUp, key: TopicPartition, count: int, error: KafkaError) -> None:
        for waiting in self._take(look_up, key, count):
            if not waiting.future.done():
                waiting.future.set_exception(KafkaError(error.code, error.message))

    def _refuse_all(self, look_up: _LookUp, keys: Iterable[TopicPartition], error: KafkaError) -> None:
        for key in keys:
            self._refuse(look_up, key, len(look_up.waiting.get(key, [])), error)

    def _let_in(self, look_up: _LookUp, key: TopicPartition, count: int) -> None:
        for waiting in self._take(look_up, key, count):
            if waiting.verification.producer_epoch == look_up.producer_epoch:
                waiting.verification.is_verified = True
            self._append(key, waiting.records, waiting.verification, waiting.future, waiting.leader_epoch)

    # asking

    def _make_ready(self, look_up: _LookUp) -> None:
        if self._look_ups.get(look_up.transactional_id) is not look_up:
            return  # it was replaced during its back-off
        self._ready[look_up.transactional_id] = look_up
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="transaction-verifier")

    async def _send(self) -> None:
        try:
            while self._ready:
                look_ups, self._ready = self._ready, {}
                await self._ask(list(look_ups.values()))
        finally:
            self._sender = None

    async def _ask(self, look_ups: list[_LookUp]) -> None:
        request = coordinator_pb2.AddPartitionsToTxnRequest()
        for look_up in look_ups:
            self._add_to(request, look_up)
        codes: dict[tuple[str, str, int], ErrorCode] = {}
        failed = ErrorCode.NETWORK_EXCEPTION
        if request.transactions:
            try:
                answer, _ = await self._coordinator().call(ADD_PARTITIONS_TO_TXN, request, timeout_ms=CALL_TIMEOUT_MS)
            except CallFailed:
                pass
            else:
                failed = _code(answer.error_code) or failed
                if not answer.error_code:
                    codes = _codes(answer)
        for look_up in look_ups:
            found = [
                (asked, codes.get((look_up.transactional_id, *named), failed)) for named, asked in look_up.asked.items()
            ]
            self._answer(look_up, found)

    def _add_to(self, request: coordinator_pb2.AddPartitionsToTxnRequest, look_up: _LookUp) -> None:
        look_up.asked = {}
        by_topic: dict[str, list[int]] = {}
        gone: list[TopicPartition] = []
        for key, waiting in look_up.waiting.items():
            name = self._logs.topic_name(key.topic_id)
            if name is None:
                gone.append(key)
                continue
            look_up.asked[(name, key.partition)] = _Asked(key, waiting[-1].verification)
            by_topic.setdefault(name, []).append(key.partition)
        self._refuse_all(look_up, gone, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted"))
        if by_topic:
            request.transactions.add(
                transactional_id=look_up.transactional_id,
                producer_id=look_up.producer_id,
                producer_epoch=look_up.producer_epoch,
                verify_only=not look_up.adds_partitions,
                topics=[
                    coordinator_pb2.NamedPartitions(topic_name=name, partitions=partitions)
                    for name, partitions in by_topic.items()
                ],
            )

    def _answer(self, look_up: _LookUp, found: list[tuple[_Asked, ErrorCode]]) -> None:
        loop = asyncio.get_running_loop()
        look_up.asked = {}
        may_retry = look_up.adds_partitions and loop.time() < look_up.give_up_at
        again = False
        for asked, code in found:
            count = look_up.answered(asked)
            if code == ErrorCode.NONE:
                self._let_in(look_up, asked.key, count)
            elif code == ErrorCode.CONCURRENT_TRANSACTIONS and may_retry:
                again = True
            else:
                self._refuse(look_up, asked.key, count, _error(code, look_up.adds_partitions))
        if not look_up.waiting:
            return
        if not again:
            self._make_ready(look_up)  # for batches that came while the call was in flight
            return
        back_off_ms = self._configs.integer("add.partitions.to.txn.retry.backoff.ms")

        def retry() -> None:
            del self._back_off[handle]
            self._make_ready(look_up)

        handle = loop.call_later(back_off_ms / 1000, retry)
        self._back_off[handle] = None


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _codes(answer: coordinator_pb2.AddPartitionsToTxnResponse) -> dict[tuple[str, str, int], ErrorCode]:
    return {
        (result.transactional_id, partition.topic_name, partition.partition): _code(partition.error_code)
        for result in answer.results
        for partition in result.partitions
    }


def _error(code: ErrorCode, adds_partitions: bool) -> KafkaError:
    """The error that the producer gets."""
    if code == ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "the producer is fenced: a newer producer has its id")
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED or code == ErrorCode.INVALID_TXN_STATE:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "the partition is not part of the producer's transaction")
    if code in _SAYS_NOTHING or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds_partitions):
        text = f"the coordinator could not confirm the transaction ({code.name}); try again"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    return KafkaError(code, f"the coordinator refused the partition for the transaction: {code.name}")
