"""The common steps of a heartbeat and a join: the consumer group is brought up to date, then the member takes a step.

Members of both protocols do it, each with the requests that it has (`heartbeats`, `classic_members`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kshare_coordinator.machine.commands import Effect, RevocationEnded, SessionEnded
from kshare_coordinator.machine.groups.consumer.draft import ConsumerGroupDraft, Resolution
from kshare_coordinator.machine.groups.consumer.reconciliation import Goal, next_assignment
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.subscriptions import (
    TopicExpressions,
    existing_topics,
    topics_of_member,
)
from kshare_coordinator.machine.groups.consumer.values import (
    NEW,
    ConsumerGroup,
    CurrentAssignment,
    Member,
    ResolvedExpression,
)
from kshare_coordinator.machine.security.describable_topics import Client
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class ConsumerGroupContext:
    """What decisions need beside the command."""

    state: CoordinatorState
    settings: ConsumerGroupSettings
    expressions: TopicExpressions


def subscription_changed(old: Member, new: Member) -> bool:
    return (old.subscribed_topic_names, old.subscribed_topic_regex) != (
        new.subscribed_topic_names,
        new.subscribed_topic_regex,
    )


def resolve_expressions(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    draft: ConsumerGroupDraft,
    regex: str,
    client: Client | None,
    now_ms: int,
) -> Resolution:
    """Resolves the group's expressions where it is time to, and those that needed more time with each heartbeat.

    It is time when a member subscribes to a new one (`regex` is that of the member that sent a heartbeat), when topics
    were created or deleted, and group.consumer.regex.refresh.interval.ms after the last time, for the ACLs may have
    changed. As in Kafka, the group's members share the result: the topics are those that `client`, the sender, may
    describe. It is not done more often, so that members with different rights do not change it in turns.
    """
    is_new = bool(regex) and regex not in draft.expressions
    if not is_new and not draft.expressions:
        return Resolution(changed=False)
    generation = context.state.topics_generation
    resolved_generation, resolved_ms, times = group.resolved
    passed_ms = now_ms - resolved_ms
    is_recent = 0 <= passed_ms < context.settings.expressions_refresh_ms  # below 0: the clock was set back
    is_written = times == resolution_times(group.expressions)
    only = None
    if is_recent and is_written and generation == resolved_generation and (not is_new or regex in group.unfinished):
        if not group.unfinished:
            return Resolution(changed=False)
        only = group.unfinished
    resolution = draft.resolve_expressions(context.expressions, client, now_ms, only)
    begun_ms = now_ms if only is None else resolved_ms
    group.resolved = (generation, begun_ms, resolution_times(draft.expressions))
    group.unfinished = resolution.unfinished
    return resolution


def resolution_times(expressions: Mapping[str, ResolvedExpression]) -> tuple[tuple[int, int], ...]:
    """The catalog's version and the time of each result."""
    return tuple(sorted((each.version, each.timestamp_ms) for each in expressions.values()))


def bring_up_to_date(
    context: ConsumerGroupContext, group: ConsumerGroup, draft: ConsumerGroupDraft, *, changed: bool
) -> None:
    """Raises the group epoch where a subscription, or topics that changed since the last look, ask for it."""
    look = (context.state.topics_generation, group.epoch)
    if not changed and group.checked == look:
        return
    draft.forget_expressions()
    draft.settle(changed=changed)
    if draft.epoch == group.epoch:
        group.checked = look


def assign_targets(context: ConsumerGroupContext, group: ConsumerGroup, draft: ConsumerGroupDraft, now_ms: int) -> int:
    """Computes new targets where the group epoch asks for them; in how many milliseconds it may be done, or 0."""
    if draft.assignment_epoch >= draft.epoch:
        return 0
    interval_ms = context.settings.intervals(context.state, group.group_id).assignment_interval_ms
    passed_ms = now_ms - group.assignment_timestamp_ms
    if group.assignment_timestamp_ms and 0 <= passed_ms < interval_ms:  # below 0: the clock was set back
        return interval_ms - passed_ms
    draft.assign(draft.assignor(context.settings.assignors[0]), now_ms)
    return 0


def reconciled(
    state: CoordinatorState,
    group: ConsumerGroup,
    draft: ConsumerGroupDraft,
    member_id: str,
    current: CurrentAssignment,
    *,
    owned: Collection[TopicPartition] | None,
    changed: bool,
) -> CurrentAssignment:
    """The member's next step; `owned` are its reported partitions, `changed`: its subscription changed."""
    if not changed and current.is_reconciled_to(draft.assignment_epoch):
        return current
    topics = topics_of_member(draft.members[member_id], draft.expressions)
    goal = Goal(
        assignment_epoch=draft.assignment_epoch,
        target=draft.targets.get(member_id, {}),
        topic_ids=existing_topics(state, topics).keys(),
        subscription_changed=changed,
        owned=owned,
        is_free=lambda partition: partition not in group.owners,
    )
    return next_assignment(current, goal)


def revocation_ended(group_id: str, member_id: str, current: CurrentAssignment) -> RevocationEnded:
    return RevocationEnded(group_id=group_id, member_id=member_id, member_epoch=current.member_epoch)


def member_ended(group: ConsumerGroup, member_id: str) -> list[Effect]:
    """Nothing is waited for any more that the member of the consumer protocol could do."""
    return [
        SessionEnded(group_id=group.group_id, member_id=member_id),
        revocation_ended(group.group_id, member_id, group.current.get(member_id, NEW)),
    ]
