"""A producer with a transactional id: its batches in several partitions count together, or none of them does (KIP-98).

`begin_anew` fences the producers that had the id before and ends their transaction. `commit` is one transaction. After
a failure of `commit` its outcome is unknown until `begin_anew` returns: then it is committed or aborted for good. A
transaction is never aborted by its own producer: a batch that arrives late would become part of the next one of the
same epoch (KIP-890), whereas `begin_anew` raises the epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.partition_log import RETRY_BACKOFF_MS, OutcomeUnknown, PartitionLog, Refused
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.producer_ids import ProducerId
from kshare_upstream.shared_produce import SharedProduce
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kshare_wire.generated.requests.end_txn import EndTxnRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.record_batches import patch_producer, read_header

FIND_COORDINATOR = VersionRange(1, 3)
INIT_PRODUCER_ID = VersionRange(0, 4)
ADD_PARTITIONS_TO_TXN = VersionRange(0, 3)
"""Up to version 3 a request has one transaction; later ones are for brokers."""
END_TXN = VersionRange(0, 4)
"""Version 5 is that of transaction version 2, whose epoch changes with every transaction."""
TRANSACTION_KEY = 1
"""FindCoordinator's key type of transactional ids."""
TRANSACTION_TIMEOUT_MS = 30_000
"""Longer than a commit's deadline; after it the cluster aborts what was left open."""
SEQUENCES = 1 << 31
"""Sequence numbers go from the highest to 0 again."""

_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_PATIENCE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
NO_PRODUCER = ProducerId(-1, -1)

AResult = TypeVar("AResult")


class TransactionalProducer:
    """See the module docstring. Its calls may not overlap."""

    def __init__(self, upstream: Upstream, transactional_id: str, *, deadline_ms: int = 10_000) -> None:
        """`deadline_ms` is how long a request is repeated."""
        self._upstream = upstream
        self._transactional_id = transactional_id
        self._deadline_ms = deadline_ms
        self._producer = NO_PRODUCER
        self._sequences: dict[UpstreamPartitionName, int] = {}
        self._coordinator: int | None = None
        self._produce = SharedProduce(upstream, timeout_ms=deadline_ms, transactional_id=transactional_id)

    @property
    def is_ready(self) -> bool:
        """Whether `commit` may be called; otherwise `begin_anew` must come first."""
        return self._producer != NO_PRODUCER

    async def begin_anew(self) -> None:
        """Becomes the only producer of the id, whose earlier transactions have ended then; Refused, OutcomeUnknown."""
        self._producer = NO_PRODUCER
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )

        async def attempt(node_id: int) -> tuple[int, ProducerId]:
            answer = await self._upstream.ask_broker(node_id, request, INIT_PRODUCER_ID)
            return answer.error_code, ProducerId(answer.producer_id, answer.producer_epoch)

        self._producer = await self._repeated("InitProducerId", attempt)
        self._sequences = {}

    async def commit(self, batches: Mapping[UpstreamPartitionName, bytes]) -> None:
        """Appends a batch to each partition in one transaction. The batches have no producer id yet.

        Refused, OutcomeUnknown: whether it is committed is known after `begin_anew`.
        """
        producer, self._producer = self._producer, NO_PRODUCER  # until it is committed, the outcome is unknown
        assert producer != NO_PRODUCER, "begin_anew comes first"
        await self._add_partitions(producer, list(batches))
        await asyncio.gather(*(self._append(producer, at, batch) for at, batch in batches.items()))
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )

        async def attempt(node_id: int) -> tuple[int, None]:
            return (await self._upstream.ask_broker(node_id, request, END_TXN)).error_code, None

        await self._repeated("EndTxn", attempt)
        for at, batch in batches.items():
            self._sequences[at] = (self._sequences.get(at, 0) + read_header(batch).record_count) % SEQUENCES
        self._producer = producer

    def forget(self) -> None:
        """`begin_anew` must come again."""
        self._producer = NO_PRODUCER

    async def close(self) -> None:
        await self._produce.close()

    async def _add_partitions(self, producer: ProducerId, partitions: list[UpstreamPartitionName]) -> None:
        topics: dict[str, list[int]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append(at.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=ids) for name, ids in topics.items()],
        )

        async def attempt(node_id: int) -> tuple[int, None]:
            answer = await self._upstream.ask_broker(node_id, request, ADD_PARTITIONS_TO_TXN)
            codes = [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
                if each.partition_error_code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
            ]
            return (codes[0] if codes else ErrorCode.NONE), None

        await self._repeated("AddPartitionsToTxn", attempt)

    async def _append(self, producer: ProducerId, at: UpstreamPartitionName, batch: bytes) -> None:
        log = PartitionLog(self._upstream, at, deadline_ms=self._deadline_ms, produce=self._produce)
        await log.append(patch_producer(batch, *producer, self._sequences.get(at, 0)))

    async def _repeated(self, api: str, attempt: Callable[[int], Awaitable[tuple[int, AResult]]]) -> AResult:
        """Asks the transaction coordinator until it has an answer, which comes with an error code."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._deadline_ms / 1000
        while True:
            try:
                code, result = await attempt(await self._find_coordinator())
            except ConnectionLost as error:
                self._coordinator, reason = None, str(error)
            else:
                if code == ErrorCode.NONE:
                    return result
                refused = Refused(code, f"{api} of transactional id {self._transactional_id}")
                if code in _MOVED:
                    self._coordinator = None
                elif code not in _PATIENCE:
                    raise refused
                reason = str(refused)
            if loop.time() + RETRY_BACKOFF_MS / 1000 > deadline_s:
                raise OutcomeUnknown(f"{reason}; given up after {self._deadline_ms} ms")
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _find_coordinator(self) -> int:
        """The broker that coordinates the id; ConnectionLost where none is known now, Refused."""
        if self._coordinator is None:
            request = FindCoordinatorRequest(key=self._transactional_id, key_type=TRANSACTION_KEY)
            answer = await self._upstream.ask_any(request, FIND_COORDINATOR)
            if answer.error_code in _MOVED or answer.error_code in _PATIENCE:
                raise ConnectionLost(f"transactional id {self._transactional_id} has no coordinator now")
            if answer.error_code:
                text = f"FindCoordinator of transactional id {self._transactional_id}"
                raise Refused(answer.error_code, text, answer.error_message)
            await self._upstream.describe([])  # the client then knows the broker's address
            self._coordinator = answer.node_id
        return self._coordinator
