"""Handlers of transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, CompleteTransactionOffsets, and descriptions.

InitProducerId is in `producer_ids`.
"""

from __future__ import annotations

import asyncio

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands, transactions, transactions_queries
from kshare_coordinator.transaction_owners import TransactionOwners
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.ports import Clock

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Clients find the coordinator anew and retry; for a storage error they would not."""


class TransactionHandlers:
    def __init__(self, core: Core, clock: Clock, owners: TransactionOwners) -> None:
        self._core = core
        self._clock = clock
        self._owners = owners

    async def add_partitions(
        self, request: pb.AddPartitionsToTxnRequest, payload: memoryview
    ) -> pb.AddPartitionsToTxnResponse:
        """Submits all transactions of the request in one turn of the machine."""
        try:
            results = await asyncio.gather(*[self._add(transaction) for transaction in request.transactions])
        except KafkaError as error:
            return pb.AddPartitionsToTxnResponse(error_code=error.code, error_message=error.message)
        except StorageFailure:
            return pb.AddPartitionsToTxnResponse(error_code=UNAVAILABLE)
        return pb.AddPartitionsToTxnResponse(results=results)

    async def _add(self, transaction: transactions.Transaction) -> transactions.AddResult:
        if transaction.verify_only:
            return transactions.verify_partitions(self._core.state_of_catalog(), transaction)
        return await self._core.submit(commands.AddPartitionsToTransaction(transaction=transaction))

    async def add_offsets(self, request: pb.AddOffsetsToTxnRequest, payload: memoryview) -> pb.AddOffsetsToTxnResponse:
        try:
            if request.verify_only:
                code = transactions.verify_offsets(self._core.state_of_catalog(), request)
            else:
                code = await self._core.submit(commands.AddOffsetsToTransaction(request=request))
        except KafkaError as error:
            return pb.AddOffsetsToTxnResponse(error_code=error.code, error_message=error.message)
        except StorageFailure:
            code = UNAVAILABLE
        return pb.AddOffsetsToTxnResponse(error_code=code)

    async def complete_offsets(
        self, request: pb.CompleteTransactionOffsetsRequest, payload: memoryview
    ) -> pb.CompleteTransactionOffsetsResponse:
        try:
            return await self._owners.complete_offsets(request)
        except StorageFailure as failure:
            return pb.CompleteTransactionOffsetsResponse(error_code=UNAVAILABLE, error_message=str(failure))

    async def end(self, request: pb.EndTxnRequest, payload: memoryview) -> pb.EndTxnResponse:
        """Answers when the outcome is durable; the leaders get it afterwards."""
        try:
            return await self._core.submit(commands.EndTransaction(request=request))
        except KafkaError as error:
            code, message = error.code, error.message
        except StorageFailure as failure:
            code, message = UNAVAILABLE, str(failure)
        return pb.EndTxnResponse(error_code=code, error_message=message, producer_id=-1, producer_epoch=-1)

    async def describe(
        self, request: pb.DescribeTransactionsRequest, payload: memoryview
    ) -> pb.DescribeTransactionsResponse:
        try:
            return transactions_queries.describe_transactions(self._core.state_of_catalog(), request)
        except KafkaError as error:
            return _undescribed(request, error.code, error.message)
        except StorageFailure as failure:
            return _undescribed(request, UNAVAILABLE, str(failure))

    async def list_transactions(
        self, request: pb.ListTransactionsRequest, payload: memoryview
    ) -> pb.ListTransactionsResponse:
        try:
            return transactions_queries.list_transactions(self._core.state_of_catalog(), request, self._clock.now_ms())
        except KafkaError as error:
            return pb.ListTransactionsResponse(error_code=error.code, error_message=error.message)
        except StorageFailure:
            return pb.ListTransactionsResponse(error_code=UNAVAILABLE)


def _undescribed(
    request: pb.DescribeTransactionsRequest, code: ErrorCode, message: str
) -> pb.DescribeTransactionsResponse:
    """An answer with the code at each transaction; the answer as a whole has it only for NOT_COORDINATOR."""
    states = [
        transactions_queries.DescribedTransaction(transactional_id=transactional_id, error_code=code)
        for transactional_id in request.transactional_ids
    ]
    if code is not ErrorCode.NOT_COORDINATOR:
        return pb.DescribeTransactionsResponse(transaction_states=states)
    return pb.DescribeTransactionsResponse(transaction_states=states, error_code=code, error_message=message)
