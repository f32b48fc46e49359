"""Dispatch of classic-protocol requests to `groups.classic.requests` or `groups.consumer.classic_members`.

Requests for a consumer group with members go to the latter, because some members may use the classic protocol. Every
other group id belongs to a classic group, or becomes one.
"""

from __future__ import annotations

from kshare_coordinator.machine.commands import ClassicHeartbeat, ClassicTimerExpired, JoinGroup, LeaveGroup, SyncGroup
from kshare_coordinator.machine.deciding import AnyDecision, decides
from kshare_coordinator.machine.groups.classic.requests import (
    ClassicSettings,
    decide_classic_heartbeat,
    decide_join,
    decide_leave,
    decide_sync,
    decide_timer_expired,
)
from kshare_coordinator.machine.groups.consumer.classic_members import (
    MEMBER_TIMERS,
    decide_heartbeat_to_consumer,
    decide_join_to_consumer,
    decide_leave_consumer,
    decide_member_timer_expired,
    decide_sync_to_consumer,
    has_members,
)
from kshare_coordinator.machine.groups.consumer.rebalance import ConsumerGroupContext


@decides(JoinGroup)
def decide_join_group(
    context: ConsumerGroupContext, command: JoinGroup, settings: ClassicSettings, now_ms: int
) -> AnyDecision:
    if has_members(context.state, command.request.group_id):
        return decide_join_to_consumer(context, command, settings, now_ms)
    return decide_join(context.state, command, settings, now_ms)


@decides(SyncGroup)
def decide_sync_group(
    context: ConsumerGroupContext, command: SyncGroup, settings: ClassicSettings, now_ms: int
) -> AnyDecision:
    if has_members(context.state, command.request.group_id):
        return decide_sync_to_consumer(context, command)
    return decide_sync(context.state, command, settings, now_ms)


@decides(ClassicHeartbeat)
def decide_heartbeat(context: ConsumerGroupContext, command: ClassicHeartbeat, now_ms: int) -> AnyDecision:
    if has_members(context.state, command.request.group_id):
        return decide_heartbeat_to_consumer(context, command, now_ms)
    return decide_classic_heartbeat(context.state, command)


@decides(LeaveGroup)
def decide_leave_group(
    context: ConsumerGroupContext, command: LeaveGroup, settings: ClassicSettings, now_ms: int
) -> AnyDecision:
    if has_members(context.state, command.request.group_id):
        return decide_leave_consumer(context, command, now_ms)
    return decide_leave(context.state, command, settings, now_ms)


@decides(ClassicTimerExpired)
def decide_expired_timer(
    context: ConsumerGroupContext, command: ClassicTimerExpired, settings: ClassicSettings, now_ms: int
) -> AnyDecision:
    if command.timer.kind in MEMBER_TIMERS:
        return decide_member_timer_expired(context, command, now_ms)
    return decide_timer_expired(context.state, command, settings, now_ms)
