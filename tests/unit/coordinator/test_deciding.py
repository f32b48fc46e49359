"""The registration of deciders: mistakes are errors when the machine is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from kshare_coordinator.machine import commands, deciding
from kshare_coordinator.machine.commands import CatalogCommand, NextCoordinatorEpoch, Start
from kshare_coordinator.machine.deciding import AnyDecision, bound, decides, load_deciders
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs, process_configs
from kshare_runtime.machine import Decision


def decide_now(state: CoordinatorState, command: Start, configs: Configs, now_ms: int) -> AnyDecision:
    return Decision((), (state, configs, now_ms))


def decide_always(state: CoordinatorState, command: Start) -> AnyDecision:
    return Decision((), state)


def test_a_decider_gets_what_it_names() -> None:
    state, configs = CoordinatorState(), process_configs({})
    command = Start(start_id="first", cluster_id="c", state_partition_count=1)
    settings: dict[type, object] = {CoordinatorState: state, Configs: configs}
    assert bound(decide_now, settings)(command, 7).response == (state, configs, 7)
    assert bound(decide_always, settings)(command, 7).response is state
    with pytest.raises(TypeError, match="decide_now has parameters of unknown types: configs"):
        bound(decide_now, {CoordinatorState: state})


def test_a_command_is_decided_by_one_function() -> None:
    function = load_deciders()[NextCoordinatorEpoch]
    with pytest.raises(ValueError, match=r"NextCoordinatorEpoch is decided twice: by .*decide_next_\w+, "):
        decides(NextCoordinatorEpoch)(decide_always)
    assert load_deciders()[NextCoordinatorEpoch] is function


def test_a_command_without_a_decider_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Forgotten(CatalogCommand[None]):
        """No function decides it."""

    monkeypatch.setattr(commands, "Forgotten", Forgotten, raising=False)
    with pytest.raises(ImportError, match="no function decides Forgotten: decorate one with @decides"):
        load_deciders()
    assert Forgotten not in cast(dict[object, object], deciding._REGISTERED)
