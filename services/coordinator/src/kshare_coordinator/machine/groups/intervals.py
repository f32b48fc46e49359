"""Intervals of share groups and consumer groups, from a group's own configs within the broker's bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs, effective_group_config, known_group_texts


class Intervals(NamedTuple):
    """session.timeout.ms, heartbeat.interval.ms and assignment.interval.ms of a kind of groups."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class GroupIntervals:
    """Answers from the broker configs, which may be dynamic; what was worked out is kept until one of them changes.

    `kind` is "share" or "consumer", the first word of a group's own configs.
    """

    def __init__(self, configs: Configs, kind: str) -> None:
        self._configs = configs
        self._kind = kind
        self._generation = configs.generation
        self._broker = self._effective({})
        self._own: dict[str, tuple[Mapping[str, str], Intervals]] = {}

    def of(self, state: CoordinatorState, group_id: str) -> Intervals:
        """The group's own configs within the broker's bounds, else the broker's."""
        if self._configs.generation != self._generation:
            self._generation = self._configs.generation
            self._broker = self._effective({})
            self._own.clear()
        texts = state.group_configs.get(group_id)
        if texts is None:
            self._own.pop(group_id, None)
            return self._broker
        known = self._own.get(group_id)
        if known is None or known[0] is not texts:
            known = self._own[group_id] = (texts, self._effective(texts))
        return known[1]

    def _effective(self, texts: Mapping[str, str]) -> Intervals:
        known, _ = known_group_texts(self._configs, texts)
        effective = effective_group_config(self._configs, known)
        return Intervals(
            session_timeout_ms=effective.integer(f"{self._kind}.session.timeout.ms"),
            heartbeat_interval_ms=effective.integer(f"{self._kind}.heartbeat.interval.ms"),
            assignment_interval_ms=effective.integer(f"{self._kind}.assignment.interval.ms"),
        )
