"""A member's way from what it owns to its target (CurrentAssignmentBuilder of Kafka 4.3.1).

A partition has one owner at a time, so a member first gives back what it shall not have any more, and says that it did
by naming what it owns; only then another one gets it:
- STABLE: on a new assignment epoch it goes on. Without one it only loses topics that it no longer subscribes to.
- UNREVOKED_PARTITIONS: it keeps its member epoch until it has given back what is pending; if it does not within its
  rebalance timeout, it is taken out of the group.
- UNRELEASED_PARTITIONS: it has the new epoch and whatever is free, and gets the rest as others give it back.

Each partition carries the epoch with which the member got it: a commit with an older member epoch is accepted for
partitions that the member has had since then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, replace

from kshare_coordinator.machine.assignor import Assignment
from kshare_coordinator.machine.consumer_groups_values import CurrentAssignment, MemberState
from kshare_core.identifiers import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where a member shall get to, and what is known of it now.

    `topic_ids`: those that it subscribes to and that exist. `owned`: what it says it owns; None where it says nothing,
    so that it may own all that it was given. `is_free` tells whether nobody owns a partition.
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
    """One step; what comes out is `current` itself where there is nothing to do."""
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
