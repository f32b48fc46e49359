"""Reconciliation of a member's owned partitions with its target (CurrentAssignmentBuilder of Kafka 4.3.1).

A partition has one owner at a time. A member first revokes the partitions that are not in its target, and confirms it
by sending the partitions that it owns; only then can another member get them:
- STABLE: a new assignment epoch starts the next step. Without one the member only loses topics that it no longer
  subscribes to.
- UNREVOKED_PARTITIONS: the member keeps its epoch until it has revoked the pending partitions. If it does not within
  its rebalance timeout, it is removed from the group.
- UNRELEASED_PARTITIONS: the member has the new epoch and the free partitions, and gets the rest as others revoke them.

Each partition carries the epoch with which the member got it: a commit with an older member epoch is accepted for
partitions that the member has had since then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, replace

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.consumer.values import CurrentAssignment, MemberState
from kshare_core.identifiers import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The target of a member, and the facts needed to reconcile it.

    `topic_ids`: its existing subscribed topics. `owned`: the partitions that the member reports as owned; None without
    a report, when it may own all that it was assigned. `is_free` tells whether a partition has no owner.
    """

    assignment_epoch: int
    target: Assignment
    topic_ids: Set[bytes]
    subscription_changed: bool
    owned: Collection[TopicPartition] | None
    is_free: Callable[[TopicPartition], bool]

    def still_owns(self, partitions: Iterable[TopicPartition]) -> bool:
        return self.owned is None or any(partition in self.owned for partition in partitions)


def next_assignment(current: CurrentAssignment, goal: Goal) -> CurrentAssignment:
    """The assignment after one step; `current` itself if there is nothing to do."""
    match current.state:
        case MemberState.STABLE:
            is_settled = current.member_epoch == goal.assignment_epoch
        case MemberState.UNREVOKED_PARTITIONS:
            is_settled = goal.still_owns(current.pending_revocation)
        case MemberState.UNRELEASED_PARTITIONS:
            is_settled = False
    if not is_settled:
        return _towards_target(current, goal)
    return _without_unsubscribed(current, goal) if goal.subscription_changed else current


def _without_unsubscribed(current: CurrentAssignment, goal: Goal) -> CurrentAssignment:
    kept = {partition: epoch for partition, epoch in current.assigned.items() if partition.topic_id in goal.topic_ids}
    if len(kept) == len(current.assigned):
        return current
    lost = {partition: epoch for partition, epoch in current.assigned.items() if partition not in kept}
    pending = {**current.pending_revocation, **lost}
    after = replace(current, previous_member_epoch=current.member_epoch, assigned=kept)
    if goal.still_owns(pending):
        return replace(after, state=MemberState.UNREVOKED_PARTITIONS, pending_revocation=pending)
    return after


def _towards_target(current: CurrentAssignment, goal: Goal) -> CurrentAssignment:
    wanted = dict.fromkeys(
        TopicPartition(topic_id, partition)
        for topic_id, partitions in sorted(goal.target.items())
        if topic_id in goal.topic_ids
        for partition in partitions
    )
    assigned = {partition: epoch for partition, epoch in current.assigned.items() if partition in wanted}
    revoked = {partition: epoch for partition, epoch in current.assigned.items() if partition not in wanted}
    if revoked and goal.still_owns(revoked):
        return replace(
            current,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=current.member_epoch,
            assigned=assigned,
            pending_revocation=revoked,
        )
    awaited = [partition for partition in wanted if partition not in assigned]
    free = [partition for partition in awaited if goal.is_free(partition) or partition in current.pending_revocation]
    return CurrentAssignment(
        member_epoch=goal.assignment_epoch,
        previous_member_epoch=current.member_epoch,
        state=MemberState.STABLE if len(free) == len(awaited) else MemberState.UNRELEASED_PARTITIONS,
        assigned={**assigned, **dict.fromkeys(free, goal.assignment_epoch)},
    )
