"""Validation of OffsetCommit and OffsetFetch for a consumer group of KIP-848 (ConsumerGroup of Kafka 4.3.1).

A commit with the member's epoch is accepted. An older epoch is accepted for partitions that the member has had since
that epoch or before, because a commit in flight while the epoch rose is still the owner's. Everything else is
STALE_MEMBER_EPOCH (ILLEGAL_GENERATION in transactions and for members that use the classic protocol), and then no
offset of the request is committed.

The group exists: callers have asked `groups.namespace`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_coordinator.machine.groups.consumer.values import NEW, ConsumerGroup, CurrentAssignment, Member
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition

FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
"""Of OffsetCommit."""


def commit_refusal(
    group: ConsumerGroup, member_id: str, epoch: int, partitions: Iterable[TopicPartition], api_version: int
) -> ErrorCode:
    """Validates an OffsetCommit; NONE accepts it. Without members, commits without an epoch are allowed."""
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and api_version < FIRST_VERSION_WITH_MEMBER_EPOCHS:
        return ErrorCode.UNSUPPORTED_VERSION
    is_right = _may_commit(group.current.get(member_id, NEW), epoch, partitions)
    return ErrorCode.NONE if is_right else _wrong_epoch(member)


def _wrong_epoch(member: Member) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def transactional_commit_refusal(
    group: ConsumerGroup, member_id: str, instance_id: str, epoch: int, partitions: Iterable[TopicPartition]
) -> ErrorCode:
    """Validates a TxnOffsetCommit; NONE accepts it. Producers of older clients send no member id."""
    names_nobody = epoch == -1 and not member_id and not instance_id
    if names_nobody or (epoch < 0 and not group.members):
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_right = _may_commit(group.current.get(member_id, NEW), epoch, partitions)
    return ErrorCode.NONE if is_right else ErrorCode.ILLEGAL_GENERATION


def _may_commit(current: CurrentAssignment, epoch: int, partitions: Iterable[TopicPartition]) -> bool:
    if epoch >= current.member_epoch:
        return epoch == current.member_epoch
    for partition in partitions:
        since = current.assigned.get(partition, current.pending_revocation.get(partition))
        if since is None or epoch < since:
            return False
    return True


def fetch_refusal(group: ConsumerGroup, member_id: str, member_epoch: int) -> ErrorCode:
    """Validates an OffsetFetch; NONE accepts it. Requests without a member id are allowed."""
    if not member_id and member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_right = member_epoch == group.current.get(member_id, NEW).member_epoch
    return ErrorCode.NONE if is_right else _wrong_epoch(member)
