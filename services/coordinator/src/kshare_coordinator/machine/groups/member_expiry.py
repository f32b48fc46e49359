"""The expiry of a member, whose group is a consumer group or a share group."""

from __future__ import annotations

from kshare_coordinator.machine.commands import ExpireMember
from kshare_coordinator.machine.deciding import AnyDecision, decides
from kshare_coordinator.machine.groups.consumer import heartbeats as consumer_groups
from kshare_coordinator.machine.groups.consumer.rebalance import ConsumerGroupContext
from kshare_coordinator.machine.groups.share import heartbeats as share_groups
from kshare_coordinator.machine.groups.share.settings import GroupSettings


@decides(ExpireMember)
def decide_expire_member(
    context: ConsumerGroupContext, command: ExpireMember, settings: GroupSettings, now_ms: int
) -> AnyDecision:
    """Removes the member if it has not sent a heartbeat since."""
    if command.group_id in context.state.consumer_groups:
        return consumer_groups.decide_expire_member(context, command, now_ms)
    return share_groups.decide_expire_member(context.state, command, settings, now_ms)
