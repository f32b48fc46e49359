"""Limits and intervals of consumer groups: the broker's, overridden by a group's own configs."""

from __future__ import annotations

from kshare_coordinator.machine.groups.intervals import GroupIntervals, Intervals
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs


class ConsumerGroupSettings:
    """Answers from the broker configs, of which some may be dynamic."""

    def __init__(self, configs: Configs) -> None:
        self.is_enabled = "consumer" in _names(configs, "group.coordinator.rebalance.protocols")
        """Whether the protocol is served at all."""
        self.max_members = configs.integer("group.consumer.max.size")
        self.max_groups = configs.integer("kshare.max.groups")
        self.assignors = _names(configs, "group.consumer.assignors")
        """The first one is for groups whose members ask for none."""
        policy = configs.text("group.consumer.migration.policy").lower()
        self.allows_upgrade = policy in ("bidirectional", "upgrade")
        """Whether a classic group becomes a consumer group when a member joins that uses the consumer protocol."""
        self.allows_downgrade = policy in ("bidirectional", "downgrade")
        """Whether a consumer group becomes a classic group when only members that use the classic protocol are left."""
        self.expressions_refresh_ms = configs.integer("group.consumer.regex.refresh.interval.ms")
        self.max_classic_members = configs.integer("group.max.size")
        self._intervals = GroupIntervals(configs, "consumer")

    def intervals(self, state: CoordinatorState, group_id: str) -> Intervals:
        """The group's own configs within the broker's bounds, else the broker's."""
        return self._intervals.of(state, group_id)


def _names(configs: Configs, name: str) -> tuple[str, ...]:
    value = configs[name]
    assert isinstance(value, tuple), f"{name} is {value!r}, not a list"
    return value
