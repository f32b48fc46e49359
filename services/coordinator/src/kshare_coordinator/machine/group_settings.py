"""Limits and intervals of share groups: the broker's, and what a group's own configs make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs, effective_group_config


class Intervals(NamedTuple):
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class GroupSettings:
    """Answers from the broker configs, which may be dynamic; what was worked out is kept until one of them changes."""

    def __init__(self, configs: Configs) -> None:
        self._configs = configs
        self.max_members = configs.integer("group.share.max.size")
        self.max_groups = configs.integer("kshare.max.groups")
        self._generation = configs.generation
        self._broker = self._intervals({})
        self._own: dict[str, tuple[Mapping[str, str], Intervals]] = {}

    def session_timeout_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.session.timeout.ms of the group, else group.share.session.timeout.ms."""
        return self._of(state, group_id).session_timeout_ms

    def heartbeat_interval_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.heartbeat.interval.ms of the group, else group.share.heartbeat.interval.ms."""
        return self._of(state, group_id).heartbeat_interval_ms

    def assignment_interval_ms(self, state: CoordinatorState, group_id: str) -> int:
        """share.assignment.interval.ms of the group, else group.share.assignment.interval.ms."""
        return self._of(state, group_id).assignment_interval_ms

    def _of(self, state: CoordinatorState, group_id: str) -> Intervals:
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
            session_timeout_ms=effective.integer("share.session.timeout.ms"),
            heartbeat_interval_ms=effective.integer("share.heartbeat.interval.ms"),
            assignment_interval_ms=effective.integer("share.assignment.interval.ms"),
        )
