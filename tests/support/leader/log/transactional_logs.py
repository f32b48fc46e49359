"""What tests of transactions on a leader's logs start from: a scripted transaction coordinator, batches and markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.producers.state import TransactionalAppend
from kshare_leader.log.producers.transaction_verifier import TransactionVerifier
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.network import CallFailed, Channel
from support.leader.log.leader_logs import BROKER, StillClock
from support.wire.record_building import build_batch

UNVERIFIED = TransactionalAppend(None, is_verification_required=False)
"""A batch that needs no word of the coordinator."""


class ScriptedCoordinator(Channel):
    """Answers AddPartitionsToTxn: `codes` by transactional id, topic name and partition, NONE by default.

    `calls` has each request. While `gate` is set, answers wait for it; `failure` is raised instead of an answer.
    """

    def __init__(self) -> None:
        self.codes: dict[tuple[str, str, int], ErrorCode] = {}
        self.default = ErrorCode.NONE
        self.request_code = 0
        self.leaves_out = False
        self.failure: CallFailed | None = None
        self.gate: asyncio.Event | None = None
        self.calls: list[coordinator_pb2.AddPartitionsToTxnRequest] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def call(self, method: Any, request: Any, payload: Any = (), *, timeout_ms: int) -> Any:
        assert method.name == "AddPartitionsToTxn"
        self.calls.append(request)
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        self.before_answer()
        if self.failure is not None:
            raise self.failure
        answer = coordinator_pb2.AddPartitionsToTxnResponse(error_code=self.request_code)
        if not self.request_code and not self.leaves_out:
            for transaction in request.transactions:
                answer.results.append(self._result(transaction))
        return answer, memoryview(b"")

    def _result(
        self, transaction: coordinator_pb2.AddPartitionsToTxnRequest.Transaction
    ) -> coordinator_pb2.AddPartitionsToTxnResponse.Result:
        result = coordinator_pb2.AddPartitionsToTxnResponse.Result(transactional_id=transaction.transactional_id)
        for topic in transaction.topics:
            for partition in topic.partitions:
                code = self.codes.get((transaction.transactional_id, topic.topic_name, partition), self.default)
                result.partitions.add(topic_name=topic.topic_name, partition=partition, error_code=code)
        return result

    async def close(self) -> None:
        return None

    def asked(self) -> list[list[tuple[str, int, bool, list[tuple[str, int]]]]]:
        """For each call, its transactions: transactional id, epoch, verify_only, partitions."""
        return [
            [
                (
                    transaction.transactional_id,
                    transaction.producer_epoch,
                    transaction.verify_only,
                    [(topic.topic_name, number) for topic in transaction.topics for number in topic.partitions],
                )
                for transaction in call.transactions
            ]
            for call in self.calls
        ]


def verifier_of(
    logs: PartitionLogs,
    coordinator: ScriptedCoordinator | None = None,
    *,
    clock: StillClock | None = None,
    configs: Mapping[str, str] | None = None,
) -> TransactionVerifier:
    channel = coordinator or ScriptedCoordinator()
    settings = Configs(PROCESS_CONFIGS, configs) if configs else BROKER
    return TransactionVerifier(logs=logs, coordinator=lambda: channel, clock=clock or StillClock(), configs=settings)


def transactional_batch(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = True
) -> memoryview:
    """A batch with values that say who wrote which sequence."""
    values = [f"{producer_id}:{epoch}:{sequence + index}".encode() for index in range(count)]
    return memoryview(
        build_batch(
            values,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def append(logs: PartitionLogs, key: TopicPartition, batch: memoryview) -> asyncio.Future[Appended]:
    """Appends without asking a coordinator."""
    return logs.append(key, batch, transactional=UNVERIFIED)


def end_of(
    producer_id: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0
) -> EndTransaction:
    return EndTransaction(producer_id, epoch, committed, coordinator_epoch, version)
