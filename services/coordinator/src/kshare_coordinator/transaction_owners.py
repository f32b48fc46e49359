"""Calls between coordinators about the offsets of transactions.

The active coordinator has the transactions. The offsets in them are rows of their groups, which another coordinator may
own.

- Before a group's owner takes a TxnOffsetCommit, it calls AddOffsetsToTxn at the active coordinator, which verifies
  that the group is in the producer's open transaction, or adds it. The answer is valid only if no end of a transaction
  of that producer arrived meanwhile; otherwise the call is repeated. So offsets of an ended transaction never stay
  pending until the producer's next one.
- When a transaction ends, the active coordinator calls CompleteTransactionOffsets at the owners of its groups. It
  retries until each owner is done, and only then completes the transaction. As a transaction marker, the call carries a
  coordinator epoch: drawn from the catalog's counter, and drawn again after each call with an unknown outcome. An owner
  refuses epochs below the highest that it has seen, and below the counter at which it gained a group partition. So a
  delayed call never ends a later transaction of a producer that keeps its epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kshare_coordinator.core import Core
from kshare_coordinator.machine.commands import CompleteTransactionOffsets
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata
from kshare_coordinator.machine.transactions.offsets import code_of_commit
from kshare_coordinator.metadata.port import CATALOG
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import ADD_OFFSETS_TO_TXN, COMPLETE_TRANSACTION_OFFSETS
from kshare_rpc.network import CallFailed, Channel, Network

CALL_TIMEOUT_MS = 5_000
ATTEMPTS = 3
"""Maximum queries to the active coordinator while ends of the producer's transactions arrive."""


class TransactionOwners:
    """Both sides of both calls; see the module's text."""

    def __init__(self, core: Core, network: Network) -> None:
        self._core = core
        self._network = network
        self._channels: dict[str, Channel] = {}
        self._asking: dict[int, dict[object, None]] = {}
        """AddOffsetsToTxn calls in flight since which no end of a transaction arrived, by producer id."""
        self._lowest_epoch = 0
        """Calls with a lower coordinator epoch are refused."""

    # At the owner of a group

    def groups_gained(self) -> None:
        """Fences calls sent before now: other coordinators may have owned the groups since those were sent."""
        self._lowest_epoch = max(self._lowest_epoch, self._core.state.epoch_counter)

    async def transaction_code(self, request: pb.TxnOffsetCommitRequest) -> ErrorCode:
        """The active coordinator's answer as a code of TxnOffsetCommit; the commit must be submitted at once.

        COORDINATOR_NOT_AVAILABLE if the active coordinator cannot be reached.
        """
        for _ in range(ATTEMPTS):
            question = object()
            asking = self._asking.setdefault(request.producer_id, {})
            asking[question] = None
            try:
                code = await self._ask(request)
                is_current = question in asking
            finally:
                asking.pop(question, None)
                if not asking and self._asking.get(request.producer_id) is asking:
                    del self._asking[request.producer_id]
            if is_current:
                return code
        return ErrorCode.CONCURRENT_TRANSACTIONS

    async def _ask(self, request: pb.TxnOffsetCommitRequest) -> ErrorCode:
        address = self._core.owner_address(CATALOG)
        if address is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        question = pb.AddOffsetsToTxnRequest(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            group_id=request.group_id,
            verify_only=not request.add_to_transaction,
        )
        try:
            answer, _ = await self._channel(address).call(ADD_OFFSETS_TO_TXN, question, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if answer.error_code == ErrorCode.NOT_COORDINATOR:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code_of_commit(ErrorCode(answer.error_code))

    async def complete_offsets(
        self, request: pb.CompleteTransactionOffsetsRequest
    ) -> pb.CompleteTransactionOffsetsResponse:
        """Handles CompleteTransactionOffsets; StorageFailure if the result could not be written."""
        if request.coordinator_epoch < self._lowest_epoch:
            text = f"Coordinator epoch {request.coordinator_epoch} is older than {self._lowest_epoch}"
            code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
            return pb.CompleteTransactionOffsetsResponse(error_code=code, error_message=text)
        command = CompleteTransactionOffsets(
            producer_id=request.producer_id, committed=request.committed, group_ids=tuple(request.group_ids)
        )
        try:
            self._core.check([partition_of_group(group_id) for group_id in request.group_ids])
            self._lowest_epoch = request.coordinator_epoch
            self._asking.get(request.producer_id, {}).clear()
            await self._core.submit(command)
        except KafkaError as error:
            return pb.CompleteTransactionOffsetsResponse(error_code=error.code, error_message=error.message)
        return pb.CompleteTransactionOffsetsResponse()

    # At the active coordinator

    async def tell(self, metadata: TransactionMetadata, group_ids: Sequence[str], epoch: int) -> Mapping[str, str]:
        """Tells the owners of these groups the transaction's outcome; returns problems by group that is not done.

        CallFailed if it is unknown whether a call took effect; `epoch` must then not be used again.
        """
        by_address: dict[str | None, list[str]] = {}
        for group_id in group_ids:
            by_address.setdefault(self._core.owner_address(partition_of_group(group_id)), []).append(group_id)
        unowned = by_address.pop(None, [])
        answers = await asyncio.gather(
            *(self._tell_one(address, metadata, of_one, epoch) for address, of_one in by_address.items() if address),
            return_exceptions=True,
        )
        problems = dict.fromkeys(unowned, "no live coordinator owns it")
        for of_one, answer in zip(by_address.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer:
                problems.update(dict.fromkeys(of_one, answer))
        return problems

    async def _tell_one(self, address: str, metadata: TransactionMetadata, group_ids: list[str], epoch: int) -> str:
        """Calls one owner; returns a problem, or an empty text if its groups are done."""
        request = pb.CompleteTransactionOffsetsRequest(
            coordinator_epoch=epoch,
            producer_id=metadata.producer_id,
            committed=metadata.is_committed,
            group_ids=group_ids,
        )
        answer, _ = await self._channel(address).call(COMPLETE_TRANSACTION_OFFSETS, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            raise CallFailed(f"coordinator {address}: {answer.error_message}")
        return f"coordinator {address}: error {answer.error_code} {answer.error_message}" if answer.error_code else ""

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        return self._channels[address]

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
