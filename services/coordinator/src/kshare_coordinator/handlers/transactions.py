"""Handlers of transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, CompleteTransactionOffsets, and descriptions.

InitProducerId is in `producer_ids`.
"""

from __future__ import annotations

import asyncio

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.transactions import contents as transactions
from kshare_coordinator.machine.transactions import queries as transactions_queries
from kshare_coordinator.transaction_owners import TransactionOwners
from kshare_core.errors import ErrorCode
from kshare_core.work_slices import WorkSlices
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves
from kshare_runtime.ports import Clock


def _not_ended(request: pb.EndTxnRequest, code: ErrorCode, message: str) -> pb.EndTxnResponse:
    return pb.EndTxnResponse(error_code=code, error_message=message, producer_id=-1, producer_epoch=-1)


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


class TransactionHandlers:
    def __init__(self, core: Core, clock: Clock, owners: TransactionOwners) -> None:
        self._core = core
        self._clock = clock
        self._owners = owners
        self._slices = WorkSlices()

    @serves(methods.ADD_PARTITIONS_TO_TXN)
    async def add_partitions(
        self, request: pb.AddPartitionsToTxnRequest, payload: memoryview
    ) -> pb.AddPartitionsToTxnResponse:
        """Submits all transactions of the request in one turn of the machine."""
        results = await asyncio.gather(*[self._add(transaction) for transaction in request.transactions])
        return pb.AddPartitionsToTxnResponse(results=results)

    async def _add(self, transaction: transactions.Transaction) -> transactions.AddResult:
        if transaction.verify_only:
            return transactions.verify_partitions(self._core.state_of_catalog(), transaction)
        return await self._core.submit(commands.AddPartitionsToTransaction(transaction=transaction))

    @serves(methods.ADD_OFFSETS_TO_TXN)
    async def add_offsets(self, request: pb.AddOffsetsToTxnRequest, payload: memoryview) -> pb.AddOffsetsToTxnResponse:
        if request.verify_only:
            code = transactions.verify_offsets(self._core.state_of_catalog(), request)
        else:
            code = await self._core.submit(commands.AddOffsetsToTransaction(request=request))
        return pb.AddOffsetsToTxnResponse(error_code=code)

    @serves(methods.COMPLETE_TRANSACTION_OFFSETS)
    async def complete_offsets(
        self, request: pb.CompleteTransactionOffsetsRequest, payload: memoryview
    ) -> pb.CompleteTransactionOffsetsResponse:
        return await self._owners.complete_offsets(request)

    @serves(methods.END_TXN, refused=_not_ended)
    async def end(self, request: pb.EndTxnRequest, payload: memoryview) -> pb.EndTxnResponse:
        """Answers when the outcome is durable; the leaders get it afterwards."""
        return await self._core.submit(commands.EndTransaction(request=request))

    @serves(methods.DESCRIBE_TRANSACTIONS, refused=_undescribed)
    async def describe(
        self, request: pb.DescribeTransactionsRequest, payload: memoryview
    ) -> pb.DescribeTransactionsResponse:
        return transactions_queries.describe_transactions(self._core.state_of_catalog(), request)

    @serves(methods.LIST_TRANSACTIONS)
    async def list_transactions(
        self, request: pb.ListTransactionsRequest, payload: memoryview
    ) -> pb.ListTransactionsResponse:
        state = self._core.state_of_catalog()
        return await self._slices.run(transactions_queries.list_transactions(state, request, self._clock.now_ms()))
