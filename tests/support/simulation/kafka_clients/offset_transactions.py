"""The transactions in which a member of a consumer group commits offsets, as a consumer that also produces does.

Each has the offsets of all partitions of the member, and is committed, aborted, or left alone until it takes too long.
An aborted one has offsets that no other commit has, so that a read shows whether they took effect. A member that is
fenced meanwhile leaves its transaction alone.

`version` 1 is the protocol before KIP-890: AddOffsetsToTxn puts the group into the transaction, and the producer keeps
its epoch, but for a transaction with a request that was not answered; a late one of its requests must not count in the
next transaction. With 2, TxnOffsetCommit adds the group itself, and each end raises the epoch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.add_offsets_to_txn.v3 import request as add_request
from kio.schema.add_offsets_to_txn.v3 import response as add_response
from kio.schema.end_txn.v4 import request as end_request_v4
from kio.schema.end_txn.v4 import response as end_response_v4
from kio.schema.end_txn.v5 import request as end_request_v5
from kio.schema.end_txn.v5 import response as end_response_v5
from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.init_producer_id.v4 import response as init_response
from kio.schema.txn_offset_commit.v3 import request as commit_request_v3
from kio.schema.txn_offset_commit.v3 import response as commit_response_v3
from kio.schema.txn_offset_commit.v5 import request as commit_request_v5
from kio.schema.txn_offset_commit.v5 import response as commit_response_v5

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.history import CommitAnswered, CommitSent
from support.simulation.kafka_clients.consumer import FENCED
from support.simulation.kafka_clients.protocol import milliseconds
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.kafka_clients.transactional_producer import ID_PREFIX, OVER, RETRY_S, TRANSIENT, TransactionOver

TRANSACTION_PROBABILITY = 0.3
ABORT_PROBABILITY = 0.35
LEAVE_PROBABILITY = 0.3
"""Of those that are not to be committed."""
TIMEOUT_MS = 5_000
OF_ABORTED = 500_000
"""So much higher are the offsets of transactions that are not to be committed."""

Codes = dict[int, int | None]
"""By partition; None where the outcome says nothing about the member."""


class OffsetTransactions:
    """See the module's text."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        group: str,
        topic: str,
        counter: list[int],
        draw: random.Random,
        check_running: Callable[[], None],
    ) -> None:
        """`check_running` raises where the member has ended."""
        self._client = client
        self._group = group
        self._topic = topic
        self._counter = counter
        self._draw = draw
        self._check_running = check_running
        self._version = draw.choice((1, 2))
        self._id = f"{ID_PREFIX}{client.host}"
        self._producer_id = -1
        self._producer_epoch = -1
        self._is_ready = False
        """Whether the producer may begin a transaction with its id and epoch."""

    def is_next(self) -> bool:
        """Whether the next commit is one in a transaction."""
        return self._draw.random() < TRANSACTION_PROBABILITY

    async def commit(self, member_id: str, epoch: int, positions: Mapping[int, int]) -> Codes:
        """One transaction from its beginning to its end; 0 for what was committed."""
        draw = self._draw
        is_aborted = draw.random() < ABORT_PROBABILITY
        offsets = {partition: offset + OF_ABORTED * is_aborted for partition, offset in positions.items()}
        try:
            if not self._is_ready:
                await self._initialize()
            if is_aborted:
                self._note_sent(offsets, is_aborted=True)
            codes = await self._add_offsets(member_id, epoch, offsets)
            if any(codes.values()) or (is_aborted and draw.random() < LEAVE_PROBABILITY):
                self._is_ready = False  # it begins anew next time, and that aborts this one, if time has not
                return codes if any(codes.values()) else dict.fromkeys(positions)
            return await self._end(offsets, commit=not is_aborted)
        except TransactionOver as reason:
            self._client.note(f"its transaction is over: {reason}")
            self._is_ready = False
            return dict.fromkeys(positions)

    def _note_sent(self, offsets: Mapping[int, int], *, is_aborted: bool = False) -> dict[int, int]:
        """The numbers of the commits by partition."""
        client, ids = self._client, {}
        for partition, offset in offsets.items():
            self._counter[0] += 1
            ids[partition] = self._counter[0]
            client.history.add(
                CommitSent(
                    client.now(), ids[partition], self._group, client.host, partition, offset, is_aborted=is_aborted
                )
            )
        return ids

    def _note_answered(self, ids: Mapping[int, int], code: int) -> None:
        for commit_id in ids.values():
            self._client.history.add(CommitAnswered(self._client.now(), commit_id, code))

    # Requests

    async def _initialize(self) -> None:
        request_type: Any = init_request.InitProducerIdRequest
        request = request_type(transactional_id=self._id, transaction_timeout=milliseconds(TIMEOUT_MS))
        answer = await self._settled("InitProducerId", request, init_response.InitProducerIdResponse)
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._is_ready = True

    async def _add_offsets(self, member_id: str, epoch: int, offsets: Mapping[int, int]) -> Codes:
        identity = {
            "transactional_id": self._id,
            "producer_id": self._producer_id,
            "producer_epoch": self._producer_epoch,
            "group_id": self._group,
        }
        if self._version == 1:
            add_type: Any = add_request.AddOffsetsToTxnRequest
            await self._settled("AddOffsetsToTxn", add_type(**identity), add_response.AddOffsetsToTxnResponse)
        module: Any = commit_request_v3 if self._version == 1 else commit_request_v5
        response: Any = commit_response_v3 if self._version == 1 else commit_response_v5
        parts = tuple(
            module.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            for partition, offset in offsets.items()
        )
        request = module.TxnOffsetCommitRequest(
            **identity,
            generation_id=epoch,
            member_id=member_id,
            topics=(module.TxnOffsetCommitRequestTopic(name=self._topic, partitions=parts),),
        )
        answer = await self._settled("TxnOffsetCommit", request, response.TxnOffsetCommitResponse)
        return {part.partition_index: int(part.error_code) for topic in answer.topics for part in topic.partitions}

    async def _end(self, offsets: Mapping[int, int], *, commit: bool) -> Codes:
        module: Any = end_request_v4 if self._version == 1 else end_request_v5
        response: Any = end_response_v4 if self._version == 1 else end_response_v5
        request = module.EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=commit,
        )
        ids = self._note_sent(offsets) if commit else {}
        try:
            answer = await self._settled("EndTxn", request, response.EndTxnResponse)
        except TransactionOver:
            self._note_answered(ids, ErrorCode.INVALID_PRODUCER_EPOCH)  # it was aborted, because it took too long
            raise
        self._note_answered(ids, 0)
        if self._version == 2:
            self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        return dict.fromkeys(offsets, 0 if commit else None)

    async def _settled(self, what: str, request: Any, response_type: Any) -> Any:
        """The answer that says that it is done, or that the member is fenced; TransactionOver where it never will be.

        Asks again until then.
        """
        while True:
            self._check_running()
            try:
                answer = await self._client.call_any(request, response_type)
            except ConnectionLost:
                self._is_ready = self._is_ready and self._version == 2
                await asyncio.sleep(RETRY_S)
                continue
            codes = _codes_of(answer)
            if any(code in OVER for code in codes):
                raise TransactionOver(f"{what} was answered with {ErrorCode(max(codes)).name}")
            left = [code for code in codes if code and code not in FENCED]
            if not left:
                return answer
            if any(code not in TRANSIENT for code in left):
                self._client.bug(f"a correct {what} was answered with {left}")
            await asyncio.sleep(RETRY_S)


def _codes_of(answer: Any) -> list[int]:
    """The error code of an answer, or those of its partitions."""
    if hasattr(answer, "error_code"):
        return [int(answer.error_code)]
    return [int(part.error_code) for topic in answer.topics for part in topic.partitions]
