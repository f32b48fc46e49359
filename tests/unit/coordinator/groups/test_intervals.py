"""The intervals of a group whose configs another version of the coordinator has stored."""

from __future__ import annotations

from kshare_coordinator.machine.groups.intervals import GroupIntervals
from kshare_core.configs import PROCESS_CONFIGS, Configs
from support.coordinator.driver import CoordinatorDriver


def test_a_config_that_this_version_does_not_know_leaves_the_others_in_force() -> None:
    state = CoordinatorDriver().state
    state.group_configs["g"] = {"share.of.a.newer.version": "1", "share.session.timeout.ms": "50000"}
    intervals = GroupIntervals(Configs(PROCESS_CONFIGS), "share")
    assert intervals.of(state, "g").session_timeout_ms == 50_000
    assert intervals.of(state, "g").heartbeat_interval_ms == intervals.of(state, "other").heartbeat_interval_ms
