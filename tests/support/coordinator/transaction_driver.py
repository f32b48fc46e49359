"""A coordinator machine with a topic, driven through transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.transactions.contents import result_of, verify_partitions
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata, TransactionState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Producer = tuple[int, int]
"""Producer id and epoch."""
Outcome = tuple[ErrorCode, Producer]
NOBODY: Producer = (-1, -1)


class TransactionDriver(CoordinatorDriver):
    """Transactional id "t" unless told otherwise; topic "orders" has `partitions` partitions."""

    def __init__(self, configs: Mapping[str, str] | None = None, *, partitions: int = 3) -> None:
        super().__init__(configs)
        self.register(pb.ROLE_LEADER)
        self.topic_id = self.create_topic("orders", partitions)

    def metadata(self, transactional_id: str = "t") -> TransactionMetadata:
        return self.state.transactions[transactional_id]

    def init(self, named: Producer = NOBODY, *, transactional_id: str = "t", timeout_ms: int = 60_000) -> Outcome:
        request = pb.InitProducerIdRequest(
            producer_id=named[0],
            producer_epoch=named[1],
            has_transactional_id=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        try:
            answer = self.run(commands.InitTransactionalProducer(request=request))
        except KafkaError as error:
            return error.code, NOBODY
        return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def begin(self, *, transactional_id: str = "t") -> Producer:
        """A new producer with an open transaction on partition 0."""
        code, producer = self.init(transactional_id=transactional_id)
        assert code is ErrorCode.NONE
        assert self.add(producer, [0], transactional_id=transactional_id) == [ErrorCode.NONE]
        return producer

    def _transaction(
        self, producer: Producer, partitions: Sequence[int], transactional_id: str, topic: str, verify_only: bool
    ) -> pb.AddPartitionsToTxnRequest.Transaction:
        return pb.AddPartitionsToTxnRequest.Transaction(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify_only,
            topics=[pb.NamedPartitions(topic_name=topic, partitions=partitions)],
        )

    def add(
        self, producer: Producer, partitions: Sequence[int], *, transactional_id: str = "t", topic: str = "orders"
    ) -> list[ErrorCode]:
        """A code for each partition."""
        transaction = self._transaction(producer, partitions, transactional_id, topic, False)
        result = self.run(commands.AddPartitionsToTransaction(transaction=transaction))
        assert list(result_of(transaction, ErrorCode.NONE).partitions) == [
            pb.AddPartitionsToTxnResponse.PartitionResult(topic_name=each.topic_name, partition=each.partition)
            for each in result.partitions
        ]
        return [ErrorCode(each.error_code) for each in result.partitions]

    def verify(
        self, producer: Producer, partitions: Sequence[int], *, transactional_id: str = "t", topic: str = "orders"
    ) -> list[ErrorCode]:
        transaction = self._transaction(producer, partitions, transactional_id, topic, True)
        return [ErrorCode(each.error_code) for each in verify_partitions(self.state, transaction).partitions]

    def add_offsets(self, producer: Producer, group_id: str = "g", *, transactional_id: str = "t") -> ErrorCode:
        request = pb.AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group_id
        )
        return self.run(commands.AddOffsetsToTransaction(request=request))

    def end(
        self, producer: Producer, *, committed: bool = True, bumps: bool = False, transactional_id: str = "t"
    ) -> Outcome:
        request = pb.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
            bumps_epoch=bumps,
        )
        try:
            answer = self.run(commands.EndTransaction(request=request))
        except KafkaError as error:
            return error.code, NOBODY
        return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def complete(self, transactional_id: str = "t") -> None:
        """What the shell does when all leaders have the markers of what is ending."""
        metadata = self.metadata(transactional_id)
        assert metadata.state.is_ending
        assert self.run(
            commands.CompleteTransaction(
                transactional_id=transactional_id,
                producer_id=metadata.producer_id,
                producer_epoch=metadata.producer_epoch,
            )
        )

    def reach(self, state: TransactionState, *, bumps: bool = True) -> None:
        """Transactional id "t" in a state, at an epoch above 0."""
        self.init()
        _, producer = self.init()
        if state is TransactionState.EMPTY:
            return
        self.add(producer, [0])
        if state is TransactionState.ONGOING:
            return
        committed = state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        assert self.end(producer, committed=committed, bumps=bumps)[0] is ErrorCode.NONE
        if not state.is_ending:
            self.complete()
        assert self.metadata().state is state

    def use_up_epochs(self, transactional_id: str = "t") -> Producer:
        """The producer goes on to its last epoch but one."""
        code, producer = self.init(transactional_id=transactional_id)
        while producer[1] < 32_766:
            code, producer = self.init(producer, transactional_id=transactional_id)
        assert code is ErrorCode.NONE
        return producer
