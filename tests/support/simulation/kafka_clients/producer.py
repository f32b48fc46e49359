"""An idempotent producer: up to three batches of a partition under way, each sent again until its fate is known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.init_producer_id.v4 import response as init_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response

from kshare_core.errors import ErrorCode
from support.simulation.connections import ClientConnection, ConnectionLost
from support.simulation.history import ProduceConfirmed, ProduceSent
from support.simulation.hosts import EPOCH_MS
from support.simulation.kafka_clients.protocol import build_batch, milliseconds
from support.simulation.kafka_clients.session import ClusterClient

InitProducerIdRequest: Any = init_request.InitProducerIdRequest
ProduceRequest: Any = produce_request.ProduceRequest
TopicProduceData: Any = produce_request.TopicProduceData
PartitionProduceData: Any = produce_request.PartitionProduceData

RETRY_S = 0.2
IN_FLIGHT_LIMIT = 3

NEVER_ALLOWED = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Answers to a correct batch of a living producer that are bugs."""


@dataclass(slots=True)
class _Batch:
    base_sequence: int
    values: tuple[str, ...]


class Producer:
    """Produces to partitions of one topic; every record of `work` is confirmed when `run` returns."""

    def __init__(
        self, client: ClusterClient, topic: str, *, spread_s: float = 0.0, first_goes_alone: bool = False
    ) -> None:
        """Batches that are under way together are sent at most `spread_s` one after the other.

        `first_goes_alone`: until the first batch of a partition is confirmed, no other of it is sent. Brokers of Apache
        Kafka take any sequence of a producer that they do not know, so they store the second batch where they have
        refused the first one a moment before (NOT_ENOUGH_REPLICAS). A Java client then begins a new epoch.
        """
        self._spread_s = spread_s
        self._first_goes_alone = first_goes_alone
        self._client = client
        self._topic = topic
        self._producer_id = -1
        self._producer_epoch = -1

    async def run(self, work: dict[int, list[tuple[str, ...]]], *, seconds: float) -> None:
        """`work`: the batches of each partition, in order, sent over about `seconds`."""
        await self._init_producer_id()
        await asyncio.gather(*(self._run_partition(index, batches, seconds) for index, batches in work.items()))

    async def run_at(self, work: Mapping[int, Sequence[tuple[float, tuple[str, ...]]]]) -> None:
        """`work`: the batches of each partition, in order, each with the seconds from now at which it is sent."""
        start = self._client.now()
        await self._init_producer_id()
        await asyncio.gather(*(self._run_partition_at(index, batches, start) for index, batches in work.items()))

    async def _run_partition_at(
        self, partition: int, batches: Sequence[tuple[float, tuple[str, ...]]], start: float
    ) -> None:
        pending: list[tuple[float, _Batch]] = []
        sequence = 0
        for at, values in batches:
            pending.append((start + at, _Batch(sequence, values)))
            sequence += len(values)
        draw = self._client.random.random
        while pending:
            await asyncio.sleep(max(0.0, pending[0][0] - self._client.now()))
            limit = 1 + int(draw() * IN_FLIGHT_LIMIT)
            if self._first_goes_alone and pending[0][1].base_sequence == 0:
                limit = 1
            due = [batch for at, batch in pending[:limit] if at <= self._client.now()]
            confirmed = await self._send_window(partition, due)
            pending = [(at, batch) for at, batch in pending if batch.base_sequence not in confirmed]
            if len(confirmed) < len(due):
                await asyncio.sleep(RETRY_S * (0.5 + draw()))

    async def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout=milliseconds(1000))
        while True:
            try:
                answer = await self._client.call_any(request, init_response.InitProducerIdResponse)
                if answer.error_code == 0:
                    self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
                    return
            except ConnectionLost:
                pass
            await asyncio.sleep(RETRY_S)

    async def _run_partition(self, partition: int, batches: Sequence[tuple[str, ...]], seconds: float) -> None:
        pending: list[_Batch] = []
        sequence = 0
        for values in batches:
            pending.append(_Batch(sequence, values))
            sequence += len(values)
        draw = self._client.random.random
        pace_s = seconds / max(1, len(pending)) * (1 + IN_FLIGHT_LIMIT) / 2
        while pending:
            window = pending[: 1 + int(draw() * IN_FLIGHT_LIMIT)]
            confirmed = await self._send_window(partition, window)
            pending = [batch for batch in pending if batch.base_sequence not in confirmed]
            await asyncio.sleep(draw() * 2 * pace_s if len(confirmed) == len(window) else RETRY_S * (0.5 + draw()))

    async def _send_window(self, partition: int, window: list[_Batch]) -> set[int]:
        """Sends batches one after the other on one connection; the base sequences of those that are confirmed."""
        try:
            metadata = await self._client.metadata(self._topic)
            if metadata is None or partition not in metadata.leaders:
                return set()
            connection = await self._client.at(metadata.leaders[partition]).connect()
        except ConnectionLost:
            return set()
        address = metadata.leaders[partition]
        sends, delay_s = [], 0.0
        for batch in window:
            sends.append(self._send(connection, address, partition, batch, delay_s))
            delay_s += self._spread_s * self._client.random.random() if self._spread_s else 0.0
        codes = await asyncio.gather(*sends)
        confirmed: set[int] = set()
        for batch, code in zip(window, codes, strict=True):
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                confirmed.add(batch.base_sequence)
            elif code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and len(confirmed) == window.index(batch):
                self._client.bug(f"OUT_OF_ORDER_SEQUENCE_NUMBER for {partition}/{batch}: all before it was confirmed")
            elif code in NEVER_ALLOWED:
                self._client.bug(f"{ErrorCode(code).name} for {partition}/{batch}")
        return confirmed

    async def _send(
        self, connection: ClientConnection, address: str, partition: int, batch: _Batch, delay_s: float
    ) -> int | None:
        """The error code of the answer, None where there was no answer."""
        client = self._client
        if delay_s:
            await asyncio.sleep(delay_s)
        records = build_batch(
            batch.values,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=batch.base_sequence,
            timestamp_ms=EPOCH_MS + int(client.now() * 1000),
        )
        data = TopicProduceData(
            name=self._topic, partition_data=(PartitionProduceData(index=partition, records=records),)
        )
        request = ProduceRequest(acks=-1, timeout=milliseconds(5_000), topic_data=(data,))
        client.history.add(ProduceSent(client.now(), client.host, partition, batch.values))
        try:
            answer = await client.at(address).send(connection, request, produce_response.ProduceResponse)
        except ConnectionLost:
            return None
        result = answer.responses[0].partition_responses[0]
        if result.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            base_offset = result.base_offset if result.error_code == 0 else -1
            client.history.add(ProduceConfirmed(client.now(), client.host, partition, base_offset, batch.values))
        else:
            client.note(f"produce {partition}/{batch.base_sequence}: {result.error_code!r} {result.error_message}")
        return int(result.error_code)
