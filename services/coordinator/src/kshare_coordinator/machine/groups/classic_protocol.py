"""Dispatch of classic-protocol requests to `groups.classic.requests` or `groups.consumer.classic_members`.

Requests for a consumer group with members go to the latter, because some members may use the classic protocol. Every
other group id belongs to a classic group, or becomes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.groups.classic.requests import (
    ClassicSettings,
    decide_classic_heartbeat,
    decide_join,
    decide_leave,
    decide_resume,
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
from kshare_coordinator.machine.records import AnyRecord
from kshare_coordinator.machine.state import CoordinatorState
from kshare_runtime.machine import Decision

AnyDecision = Decision[AnyRecord, Any, Effect]


Decider = Callable[[Any, int], AnyDecision]
"""From a command and the time."""


def classic_protocol_deciders(
    context: ConsumerGroupContext, settings: ClassicSettings
) -> dict[type[Command[Any]], Decider]:
    """By type of command."""
    state = context.state

    def timer_expired(command: commands.ClassicTimerExpired, now_ms: int) -> AnyDecision:
        if command.timer.kind in MEMBER_TIMERS:
            return decide_member_timer_expired(context, command, now_ms)
        return decide_timer_expired(state, command, settings, now_ms)

    return {
        commands.JoinGroup: _either(
            state,
            lambda command, now_ms: decide_join_to_consumer(context, command, settings, now_ms),
            lambda command, now_ms: decide_join(state, command, settings, now_ms),
        ),
        commands.SyncGroup: _either(
            state,
            lambda command, now_ms: decide_sync_to_consumer(context, command),
            lambda command, now_ms: decide_sync(state, command, now_ms),
        ),
        commands.ClassicHeartbeat: _either(
            state,
            lambda command, now_ms: decide_heartbeat_to_consumer(context, command, now_ms),
            lambda command, now_ms: decide_classic_heartbeat(state, command),
        ),
        commands.LeaveGroup: _either(
            state,
            lambda command, now_ms: decide_leave_consumer(context, command, now_ms),
            lambda command, now_ms: decide_leave(state, command, settings, now_ms),
        ),
        commands.ClassicTimerExpired: timer_expired,
        commands.ResumeClassicGroups: lambda command, now_ms: decide_resume(state, command, settings, now_ms),
    }


def _either(state: CoordinatorState, of_consumer_group: Decider, of_classic_group: Decider) -> Decider:
    def decide(command: Any, now_ms: int) -> AnyDecision:
        is_consumer_group = has_members(state, command.request.group_id)
        return (of_consumer_group if is_consumer_group else of_classic_group)(command, now_ms)

    return decide
