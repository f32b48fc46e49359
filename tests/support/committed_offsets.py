"""Commits and fetches offsets at a CoordinatorDriver, in terms of topic names and plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kshare_coordinator.machine import commands, offsets_view
from kshare_coordinator.machine.state import CoordinatorState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator_driver import CoordinatorDriver

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
