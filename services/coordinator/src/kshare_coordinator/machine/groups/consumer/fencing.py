"""Removal of members from a consumer group: they left, their session expired, or they missed a rebalance timeout.

The remaining members get the freed partitions with their next heartbeats. If all remaining members use the classic
protocol, the group becomes a classic one (`downgrade`).
"""

from __future__ import annotations

from collections.abc import Collection

from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, ClassicTimerCancelled, TimerKind
from kshare_coordinator.machine.groups.consumer.downgrade import downgraded, is_left_to_classic_members
from kshare_coordinator.machine.groups.consumer.draft import ConsumerGroupDraft
from kshare_coordinator.machine.groups.consumer.rebalance import ConsumerGroupContext, member_ended
from kshare_coordinator.machine.groups.consumer.values import ConsumerGroup
from kshare_coordinator.machine.records import AnyRecord

Change = tuple[list[AnyRecord], list[Effect]]


def classic_timers_ended(group_id: str, member_id: str) -> list[Effect]:
    """The member has joined and synced, or is gone, or uses the consumer protocol now."""
    kinds = (TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC)
    return [ClassicTimerCancelled(timer=ClassicTimer(kind, group_id, member_id)) for kind in kinds]


def all_timers_ended(group: ConsumerGroup, member_ids: Collection[str]) -> list[Effect]:
    effects: list[Effect] = []
    for member_id in member_ids:
        effects += member_ended(group, member_id)
        if group.members[member_id].classic is not None:
            effects += classic_timers_ended(group.group_id, member_id)
    return effects


def without_members(
    context: ConsumerGroupContext, group: ConsumerGroup, member_ids: Collection[str], now_ms: int
) -> Change:
    """Removes members of the group."""
    if not member_ids:
        return [], []
    if is_left_to_classic_members(group, context.settings, member_ids):
        records, effects = downgraded(context.state, group, now_ms, leaving=member_ids, rebalance=True)
        return records, [*all_timers_ended(group, group.members), *effects]
    draft = ConsumerGroupDraft(context.state, group)
    for member_id in member_ids:
        draft.remove_member(member_id)
    draft.forget_expressions()
    draft.settle(changed=True)
    return [*draft.records], all_timers_ended(group, member_ids)
