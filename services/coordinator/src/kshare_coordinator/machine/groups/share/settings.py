"""Limits and intervals of share groups: the broker's, overridden by a group's own configs."""

from __future__ import annotations

from kshare_coordinator.machine.groups.intervals import GroupIntervals
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs


class GroupSettings:
    """Answers from the broker configs, of which some may be dynamic."""

    def __init__(self, configs: Configs) -> None:
        self.max_members = configs.integer("group.share.max.size")
        self.max_groups = configs.integer("kshare.max.groups")
        self.max_subscribed_topics = configs.integer("kshare.share.max.subscribed.topics")
        self._intervals = GroupIntervals(configs, "share")

    def session_timeout_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.session.timeout.ms of the group, else group.share.session.timeout.ms."""
        return self._intervals.of(state, group_id).session_timeout_ms

    def heartbeat_interval_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.heartbeat.interval.ms of the group, else group.share.heartbeat.interval.ms."""
        return self._intervals.of(state, group_id).heartbeat_interval_ms

    def assignment_interval_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.assignment.interval.ms of the group, else group.share.assignment.interval.ms."""
        return self._intervals.of(state, group_id).assignment_interval_ms
