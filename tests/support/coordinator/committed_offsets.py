"""Commits and fetches offsets at a CoordinatorDriver, in terms of topic names and plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.offsets import view as offsets_view
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Partition = tuple[str, int]


def offset_of(partition: Partition, offset: int, metadata: str = "", leader_epoch: int = -1) -> pb.CommittedOffset:
    name, number = partition
    return pb.CommittedOffset(
        topic_name=name,
        partition=number,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )


def commit(
    driver: CoordinatorDriver, offsets: Mapping[Partition, int] | Iterable[pb.CommittedOffset], **fields: object
) -> list[int]:
    """OffsetCommit of a simple consumer of "group"; the codes in the order of `offsets`."""
    request = pb.OffsetCommitRequest(
        group_id="group", generation_id_or_member_epoch=-1, api_version=10, offsets=_offsets(offsets)
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return [result.error_code for result in driver.run(commands.OffsetCommit(request=request)).results]


def transactional_commit(
    driver: CoordinatorDriver, offsets: Mapping[Partition, int] | Iterable[pb.CommittedOffset], **fields: object
) -> list[int]:
    """TxnOffsetCommit of "group", as in version 5."""
    request = pb.TxnOffsetCommitRequest(
        group_id="group", generation_id=-1, add_to_transaction=True, offsets=_offsets(offsets)
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return [result.error_code for result in driver.run(commands.TxnOffsetCommit(request=request)).results]


def _offsets(offsets: Mapping[Partition, int] | Iterable[pb.CommittedOffset]) -> list[pb.CommittedOffset]:
    if isinstance(offsets, Mapping):
        return [offset_of(partition, offset) for partition, offset in offsets.items()]
    return list(offsets)


def fetched(state: CoordinatorState, group_id: str = "group", *, require_stable: bool = False) -> dict[Partition, int]:
    """OffsetFetch of all topics: offsets by partition, and the code below zero where there is one."""
    request = pb.OffsetFetchRequest(group_id=group_id, all_topics=True, require_stable=require_stable)
    return {
        (result.offset.topic_name, result.offset.partition): -result.error_code or result.offset.committed_offset
        for result in offsets_view.fetch(state, request).results
    }


class TransactionalProducer:
    """A producer with a transactional id, as KIP-890 clients behave: the epoch grows with each end."""

    def __init__(self, driver: CoordinatorDriver, transactional_id: str = "producer") -> None:
        self._driver = driver
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = -1, -1
        self.initialize()

    def initialize(self) -> None:
        """InitProducerId; where that aborts a transaction first, a second time."""
        for _ in range(2):
            request = pb.InitProducerIdRequest(
                producer_id=-1,
                producer_epoch=-1,
                has_transactional_id=True,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=60_000,
            )
            answer = self._driver.run(commands.InitTransactionalProducer(request=request))
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        assert answer.error_code == 0
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def commit(self, offsets: Mapping[Partition, int] | Iterable[pb.CommittedOffset], **fields: object) -> list[int]:
        """TxnOffsetCommit; the codes in the order of `offsets`."""
        return transactional_commit(self._driver, offsets, **{**identity_of(self), **fields})

    def add_offsets(self, group_id: str = "group") -> int:
        """AddOffsetsToTxn."""
        request = pb.AddOffsetsToTxnRequest(group_id=group_id, **identity_of(self))
        return self._driver.run(commands.AddOffsetsToTransaction(request=request))

    def end(self, *, committed: bool) -> None:
        """EndTxn; a transaction that has no partitions of topics is complete with the answer."""
        request = pb.EndTxnRequest(committed=committed, bumps_epoch=True, **identity_of(self))
        answer = self._driver.run(commands.EndTransaction(request=request))
        assert answer.error_code == 0
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch


class ProducerFields(TypedDict):
    transactional_id: str
    producer_id: int
    producer_epoch: int


def identity_of(producer: TransactionalProducer) -> ProducerFields:
    """Who a request is from."""
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
