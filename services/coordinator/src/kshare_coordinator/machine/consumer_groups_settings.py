"""Limits and intervals of consumer groups: the broker's, and what a group's own configs make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs, effective_group_config


class Intervals(NamedTuple):
    """consumer.session.timeout.ms, consumer.heartbeat.interval.ms, consumer.assignment.interval.ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class ConsumerGroupSettings:
    """Answers from the broker configs, which may be dynamic; what was worked out is kept until one of them changes."""

    def __init__(self, configs: Configs) -> None:
        self._configs = configs
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
        self.max_classic_members = configs.integer("group.max.size")
        self._generation = configs.generation
        self._broker = self._intervals({})
        self._own: dict[str, tuple[Mapping[str, str], Intervals]] = {}

    def intervals(self, state: CoordinatorState, group_id: str) -> Intervals:
        """The group's own configs within the broker's bounds, else the broker's."""
        if self._configs.generation != self._generation:
            self._generation = self._configs.generation
            self._broker = self._intervals({})
            self._own.clear()
        texts = state.group_configs.get(group_id)
        if texts is None:
            self._own.pop(group_id, None)
            return self._broker
        known = self._own.get(group_id)
        if known is None or known[0] is not texts:
            known = self._own[group_id] = (texts, self._intervals(texts))
        return known[1]

    def _intervals(self, texts: Mapping[str, str]) -> Intervals:
        effective = effective_group_config(self._configs, texts)
        return Intervals(
            session_timeout_ms=effective.integer("consumer.session.timeout.ms"),
            heartbeat_interval_ms=effective.integer("consumer.heartbeat.interval.ms"),
            assignment_interval_ms=effective.integer("consumer.assignment.interval.ms"),
        )


def _names(configs: Configs, name: str) -> tuple[str, ...]:
    value = configs[name]
    assert isinstance(value, tuple), f"{name} is {value!r}, not a list"
    return value
