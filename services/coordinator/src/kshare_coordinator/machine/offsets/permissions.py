"""Permission to commit, fetch and delete a group's offsets, and their expiry: one function for each type of group.

A new type of group adds its functions to the tables at the end. What Kafka calls them: Group.validateOffsetCommit,
validateOffsetFetch, validateOffsetDelete, isSubscribedToTopic and offsetExpirationCondition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.classic.group import ClassicGroup, ClassicGroupState, member_refusal
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, ClassicTimerSet, TimerKind
from kshare_coordinator.machine.groups.consumer.offsets import (
    commit_refusal,
    fetch_refusal,
    transactional_commit_refusal,
)
from kshare_coordinator.machine.groups.consumer.records import records_without_group
from kshare_coordinator.machine.groups.namespace import GroupType, classic_group, group_type, is_full
from kshare_coordinator.machine.offsets.table import OffsetCommitValue
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition

NO_GENERATION = -1


RetentionBegin = Callable[[OffsetCommitValue], int]
"""The time in milliseconds at which the retention time of an offset began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """The sender of a commit: `epoch` is a generation id or member epoch, below 0 for none. Texts may be empty."""

    group_id: str
    member_id: str = ""
    group_instance_id: str = ""
    epoch: int = NO_GENERATION
    is_transactional: bool = False
    api_version: int = 0
    partitions: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """The error of a commit, or NONE; `effects` are those of a commit that also renews the session."""

    code: ErrorCode = ErrorCode.NONE
    effects: Sequence[Effect] = ()


def check_commit(state: CoordinatorState, committer: Committer, max_groups: int, unknown: ErrorCode) -> CommitVerdict:
    """`unknown`: the code for an epoch of a group that does not exist. A commit without an epoch makes the group."""
    kind = group_type(state, committer.group_id)
    if kind is not None:
        return _COMMIT[kind](state, committer)
    if committer.epoch >= 0:
        return CommitVerdict(unknown)
    return CommitVerdict(ErrorCode.GROUP_MAX_SIZE_REACHED if is_full(state, max_groups) else ErrorCode.NONE)


def check_fetch(state: CoordinatorState, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
    """Why the group as a whole cannot be fetched from; a group that does not exist has no offsets, that is all."""
    kind = group_type(state, group_id)
    check = None if kind is None else _FETCH.get(kind)
    return ErrorCode.NONE if check is None else check(state, group_id, member_id, member_epoch)


def check_delete(state: CoordinatorState, group_id: str) -> ErrorCode:
    """Why no offset of the group can be deleted."""
    kind = group_type(state, group_id)
    return ErrorCode.GROUP_ID_NOT_FOUND if kind is None else _DELETE[kind](state, group_id)


def is_subscribed(state: CoordinatorState, group_id: str, topic_name: str) -> bool:
    """Whether offsets of the topic are kept because the group consumes it."""
    kind = group_type(state, group_id)
    check = None if kind is None else _SUBSCRIBED.get(kind)
    return check is not None and check(state, group_id, topic_name)


def retention_begin(state: CoordinatorState, group_id: str) -> RetentionBegin | None:
    """When the retention time of the group's offsets began; None while the group keeps all of them."""
    kind = group_type(state, group_id)
    find = None if kind is None else _RETENTION.get(kind)
    return None if find is None else find(state, group_id)


def records_of_forgotten_group(state: CoordinatorState, group_id: str) -> list[Record]:
    """What takes a group out that has no offset left, where it has no member either."""
    consumer_group = state.consumer_groups.get(group_id)
    if consumer_group is not None:
        return [] if consumer_group.members else records_without_group(consumer_group)
    group = state.classic_groups.get(group_id)
    if group is None or not group.is_empty or group.pending_members:
        return []
    return [records.classic_group(group_id, None)]


def _classic(state: CoordinatorState, group_id: str) -> ClassicGroup:
    group = classic_group(state, group_id)
    assert group is not None, "its type says that it exists"
    return group


def _commit_to_classic(state: CoordinatorState, committer: Committer) -> CommitVerdict:
    group = _classic(state, committer.group_id)
    if committer.epoch < 0 and group.is_empty:
        return CommitVerdict()
    if committer.epoch >= 0 or committer.member_id or committer.group_instance_id:
        code = member_refusal(group, committer.member_id, committer.group_instance_id)
        if code or committer.epoch != group.generation_id:
            return CommitVerdict(code or ErrorCode.ILLEGAL_GENERATION)
    elif not committer.is_transactional:
        return CommitVerdict(ErrorCode.UNKNOWN_MEMBER_ID)
    if committer.is_transactional:
        return CommitVerdict()
    if group.state is ClassicGroupState.COMPLETING_REBALANCE:
        return CommitVerdict(ErrorCode.REBALANCE_IN_PROGRESS)
    timer = ClassicTimer(TimerKind.SESSION, committer.group_id, committer.member_id)
    return CommitVerdict(
        effects=(ClassicTimerSet(timer=timer, delay_ms=group.members[committer.member_id].session_timeout_ms),)
    )


def _commit_to_consumer(state: CoordinatorState, committer: Committer) -> CommitVerdict:
    group = state.consumer_groups[committer.group_id]
    member_id, epoch, partitions = committer.member_id, committer.epoch, committer.partitions
    if committer.is_transactional:
        instance_id = committer.group_instance_id
        return CommitVerdict(transactional_commit_refusal(group, member_id, instance_id, epoch, partitions))
    return CommitVerdict(commit_refusal(group, member_id, epoch, partitions, committer.api_version))


def _commit_to_share(state: CoordinatorState, committer: Committer) -> CommitVerdict:
    """A share group has no committed offsets."""
    return CommitVerdict(ErrorCode.GROUP_ID_NOT_FOUND)


def _delete_from_classic(state: CoordinatorState, group_id: str) -> ErrorCode:
    """Only of consumer groups it is known which topics they consume."""
    group = _classic(state, group_id)
    return ErrorCode.NONE if group.is_empty or group.is_consumer_group else ErrorCode.NON_EMPTY_GROUP


def _fetch_from_consumer(state: CoordinatorState, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
    return fetch_refusal(state.consumer_groups[group_id], member_id, member_epoch)


def _delete_from_consumer(state: CoordinatorState, group_id: str) -> ErrorCode:
    """Offsets of topics that are being consumed are refused by topic."""
    return ErrorCode.NONE


def _delete_from_share(state: CoordinatorState, group_id: str) -> ErrorCode:
    return ErrorCode.GROUP_ID_NOT_FOUND


def _is_classic_subscribed(state: CoordinatorState, group_id: str, topic_name: str) -> bool:
    return _classic(state, group_id).is_subscribed_to(topic_name)


def _is_consumer_subscribed(state: CoordinatorState, group_id: str, topic_name: str) -> bool:
    return state.consumer_groups[group_id].is_subscribed_to(topic_name)


def _at_commit(value: OffsetCommitValue) -> int:
    return value.commit_timestamp_ms


def _consumer_retention(state: CoordinatorState, group_id: str) -> RetentionBegin | None:
    return _at_commit


def _classic_retention(state: CoordinatorState, group_id: str) -> RetentionBegin | None:
    group = _classic(state, group_id)
    if not group.protocol_type:
        return _at_commit
    if group.is_empty:
        return lambda value: group.state_timestamp_ms
    if group.state is ClassicGroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        return _at_commit
    return None


_COMMIT: dict[GroupType, Callable[[CoordinatorState, Committer], CommitVerdict]] = {
    GroupType.CLASSIC: _commit_to_classic,
    GroupType.CONSUMER: _commit_to_consumer,
    GroupType.SHARE: _commit_to_share,
}
_FETCH: dict[GroupType, Callable[[CoordinatorState, str, str, int], ErrorCode]] = {
    GroupType.CONSUMER: _fetch_from_consumer
}
"""Group types that validate the member of a fetch; classic groups allow every fetch."""
_DELETE: dict[GroupType, Callable[[CoordinatorState, str], ErrorCode]] = {
    GroupType.CLASSIC: _delete_from_classic,
    GroupType.CONSUMER: _delete_from_consumer,
    GroupType.SHARE: _delete_from_share,
}
_SUBSCRIBED: dict[GroupType, Callable[[CoordinatorState, str, str], bool]] = {
    GroupType.CLASSIC: _is_classic_subscribed,
    GroupType.CONSUMER: _is_consumer_subscribed,
}
_RETENTION: dict[GroupType, Callable[[CoordinatorState, str], RetentionBegin | None]] = {
    GroupType.CLASSIC: _classic_retention,
    GroupType.CONSUMER: _consumer_retention,
}
