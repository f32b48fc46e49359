"""A transactional producer: transactions over several partitions, each committed, aborted or left alone.

It behaves as Java's does: a request whose fate is unknown is sent again until an answer settles it; after an answer
that says that its transaction is over (it took too long, another incarnation came) it initialises itself anew.
`version` 1 is the protocol before KIP-890 (AddPartitionsToTxn, one epoch for many transactions), 2 the one since (the
leader adds partitions, each end raises the epoch).

A transaction that is left alone is followed by a late batch of the fenced producer, which must be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.add_partitions_to_txn.v3 import request as add_request
from kio.schema.add_partitions_to_txn.v3 import response as add_response
from kio.schema.end_txn.v4 import request as end_request_v4
from kio.schema.end_txn.v4 import response as end_response_v4
from kio.schema.end_txn.v5 import request as end_request_v5
from kio.schema.end_txn.v5 import response as end_response_v5
from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.init_producer_id.v4 import response as init_response
from kio.schema.produce.v11 import request as produce_request_v11
from kio.schema.produce.v11 import response as produce_response_v11
from kio.schema.produce.v12 import request as produce_request_v12
from kio.schema.produce.v12 import response as produce_response_v12

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.history import (
    ProduceConfirmed,
    ProduceSent,
    TransactionBegun,
    TransactionEndConfirmed,
    TransactionEndSent,
)
from support.simulation.hosts import EPOCH_MS
from support.simulation.kafka_clients.protocol import build_batch, milliseconds
from support.simulation.kafka_clients.session import ClusterClient

ID_PREFIX = "id-of-"
RETRY_S = 0.2
COMMIT_PROBABILITY = 0.65
LEAVE_PROBABILITY = 0.12

OVER = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
)
"""Answers that say that the transaction is over; the producer starts anew."""

TRANSIENT = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
"""Answers after which the same request is sent again; any other code is a bug."""

Work = Mapping[int, Sequence[tuple[str, ...]]]
"""The batches of each partition."""


def producer_of(transactional_id: str) -> str:
    """The host of the producer that has this id."""
    return transactional_id.removeprefix(ID_PREFIX)


class TransactionOver(Exception):
    """The cluster ended the transaction, or the producer leaves it."""


class TransactionalProducer:
    """See the module's text."""

    def __init__(
        self, client: ClusterClient, topic: str, *, version: int, timeout_ms: int, may_be_forgotten: bool = False
    ) -> None:
        """`may_be_forgotten`: the log may lose this producer's batches, and keep a marker of it.

        A broker that restarts then knows the epoch without a sequence, and refuses any but the first one. Java's
        producer aborts and begins with a new epoch.
        """
        self._may_be_forgotten = may_be_forgotten
        self._client = client
        self._topic = topic
        self._version = version
        self._timeout_ms = timeout_ms
        self._id = f"{ID_PREFIX}{client.host}"
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[int, int] = {}
        self._produce: Any = produce_request_v11 if version == 1 else produce_request_v12
        self._produce_response: Any = (produce_response_v11 if version == 1 else produce_response_v12).ProduceResponse

    async def run(self, transactions: Sequence[Work], *, seconds: float) -> None:
        """One transaction after the other, over about `seconds`."""
        draw = self._client.random.random
        await self._initialise()
        for number, work in enumerate(transactions):
            await self._transact_or_start_anew(number, work)
            await asyncio.sleep(2 * draw() * seconds / len(transactions))

    async def run_at(self, transactions: Sequence[tuple[float, Work]]) -> None:
        """One transaction after the other, each so many seconds from now or, where it is late, after the former."""
        start = self._client.now()
        await self._initialise()
        for number, (at, work) in enumerate(transactions):
            await asyncio.sleep(max(0.0, start + at - self._client.now()))
            await self._transact_or_start_anew(number, work)

    async def _transact_or_start_anew(self, number: int, work: Work) -> None:
        draw = self._client.random.random
        try:
            await self._transact(number, work)
        except TransactionOver as reason:
            self._client.note(f"transaction {number} is over: {reason}")
            await asyncio.sleep(3 * draw() * (draw() < 0.5))
            await self._start_anew(next(iter(work)))

    async def _transact(self, number: int, work: Work) -> None:
        client = self._client
        values = tuple(value for batches in work.values() for batch in batches for value in batch)
        client.history.add(TransactionBegun(client.now(), client.host, number, values))
        if self._version == 1:
            await self._add_partitions(list(work))
        sends = [self._send_all(partition, batches) for partition, batches in work.items()]
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        if client.random.random() < LEAVE_PROBABILITY:
            raise TransactionOver("it is left alone")
        await self._end(number, commit=client.random.random() < COMMIT_PROBABILITY)

    async def _start_anew(self, partition: int) -> None:
        """A new incarnation; then a batch of the former one arrives."""
        former = (self._producer_id, self._producer_epoch, self._sequences.get(partition, 0))
        await self._initialise()
        code = await self._send(partition, ("of a fenced producer",), *former)
        if code == ErrorCode.NONE:
            self._client.bug(f"a batch of producer epoch {former[1]} was taken in epoch {self._producer_epoch}")

    # The coordinator

    async def _initialise(self) -> None:
        kind: Any = init_request.InitProducerIdRequest
        request = kind(transactional_id=self._id, transaction_timeout=milliseconds(self._timeout_ms))
        while True:
            answer = await self._ask(request, init_response.InitProducerIdResponse)
            if answer is not None and self._settled("InitProducerId", answer.error_code):
                break
            await asyncio.sleep(RETRY_S)
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences = {}

    async def _add_partitions(self, partitions: Sequence[int]) -> None:
        request_type: Any = add_request.AddPartitionsToTxnRequest
        topic: Any = add_request.AddPartitionsToTxnTopic
        request = request_type(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=(topic(name=self._topic, partitions=tuple(partitions)),),
        )
        while True:
            answer = await self._ask(request, add_response.AddPartitionsToTxnResponse)
            if answer is not None:
                results = answer.results_by_topic_v3_and_below[0].results_by_partition
                codes = [result.partition_error_code for result in results]
                if all([self._settled("AddPartitionsToTxn", code) for code in codes]):
                    return
            await asyncio.sleep(RETRY_S)

    async def _end(self, number: int, *, commit: bool) -> None:
        client = self._client
        module: Any = end_request_v4 if self._version == 1 else end_request_v5
        response: Any = (end_response_v4 if self._version == 1 else end_response_v5).EndTxnResponse
        request = module.EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=commit,
        )
        client.history.add(TransactionEndSent(client.now(), client.host, number, commit))
        while True:
            answer = await self._ask(request, response)
            if answer is not None and self._settled("EndTxn", answer.error_code):
                break
            await asyncio.sleep(RETRY_S)
        client.history.add(TransactionEndConfirmed(client.now(), client.host, number, commit))
        if self._version == 2:
            self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequences = {}

    async def _ask(self, request: Any, response_type: Any) -> Any:
        try:
            return await self._client.call_any(request, response_type)
        except ConnectionLost:
            return None

    def _settled(self, what: str, code: int) -> bool:
        """Whether it is done; TransactionOver where it never will be."""
        if code == ErrorCode.NONE:
            return True
        self._client.note(f"{what}: {code!r}")
        is_forgotten = self._may_be_forgotten and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if code in OVER or is_forgotten:
            raise TransactionOver(f"{what} was answered with {ErrorCode(code).name}")
        if code not in TRANSIENT:
            self._client.bug(f"a correct {what} was answered with {code!r}")
        return False

    # Records

    async def _send_all(self, partition: int, batches: Sequence[tuple[str, ...]]) -> None:
        for values in batches:
            sequence = self._sequences.get(partition, 0)
            while True:
                code = await self._send(partition, values, self._producer_id, self._producer_epoch, sequence)
                if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    break
                if code is not None and self._settled(f"Produce to {partition}", code):
                    break
                await asyncio.sleep(RETRY_S)
            self._sequences[partition] = sequence + len(values)
            await asyncio.sleep(self._client.random.random() * 0.3)

    async def _send(
        self, partition: int, values: tuple[str, ...], producer_id: int, producer_epoch: int, sequence: int
    ) -> int | None:
        """The error code of the answer, None where there was no answer."""
        client, module = self._client, self._produce
        records = build_batch(
            values,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            timestamp_ms=EPOCH_MS + int(client.now() * 1000),
            transactional=True,
        )
        part = module.PartitionProduceData(index=partition, records=records)
        request = module.ProduceRequest(
            transactional_id=self._id,
            acks=-1,
            timeout=milliseconds(5_000),
            topic_data=(module.TopicProduceData(name=self._topic, partition_data=(part,)),),
        )
        client.history.add(ProduceSent(client.now(), client.host, partition, values))
        try:
            metadata = await client.metadata(self._topic)
            if metadata is None or partition not in metadata.leaders:
                return None
            answer = await client.at(metadata.leaders[partition]).call(request, self._produce_response)
        except ConnectionLost:
            return None
        result = answer.responses[0].partition_responses[0]
        if result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            base_offset = result.base_offset if result.error_code == 0 else -1
            client.history.add(ProduceConfirmed(client.now(), client.host, partition, base_offset, values))
        return int(result.error_code)
