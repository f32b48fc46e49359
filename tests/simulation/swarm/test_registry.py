"""Each seed has some features and kinds of fault, and does without others; the registry names each once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from support.simulation import swarm
from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.fault_kinds.etcd import ETCD_KINDS
from support.simulation.faults import Fault, FaultKind, draw_faults
from support.simulation.mutations.planted_bug import on_etcd
from support.simulation.plan import ACTIVITIES, DRAW_PLAN, KAFKA_ACTIVITIES, LATER_ACTIVITIES, PART_OF
from support.simulation.scenario import SeedRun
from support.simulation.swarm import (
    BATCH_SPREADS_S,
    BEHAVIOURS,
    FAULT_KINDS,
    FEATURES,
    OFTEN,
    Feature,
    draw_swarm_plan,
    fault_kinds_of,
    members_behaviour,
)

HOSTS = [
    f"{role}-{number}"
    for role in ("coordinator", "share-coordinator", "leader", "gateway", "broker")
    for number in (1, 2, 3)
]
ENGINES = [EMBEDDED, KAFKA]


def test_names_are_given_once() -> None:
    names = [kind.name for kind in FAULT_KINDS] + [feature.name for feature in FEATURES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", FAULT_KINDS, ids=lambda kind: kind.name)
def test_a_kind_draws_faults_of_its_name(kind: FaultKind) -> None:
    draw = random.Random(1)
    for _ in range(20):
        fault = kind.draw(draw, HOSTS, 3.0)
        assert (fault.name, fault.at) == (kind.name, 3.0)
        assert set(fault.hosts) <= set(HOSTS)


@pytest.mark.parametrize("engine", ENGINES)
def test_seeds_differ_in_what_they_have(engine: str) -> None:
    plans = [draw_swarm_plan(seed, engine) for seed in range(200)]
    kinds = [kind for kind in FAULT_KINDS if engine in kind.engines and kind.weight]
    for name in [kind.name for kind in kinds]:
        without = sum(name in plan.fault_kinds_off for plan in plans)
        assert 30 < without < 120, name
    for feature in FEATURES:
        without = sum(not plan.has(feature.name) for plan in plans)
        assert 30 < without < 120 if engine in feature.engines else without == 0, feature
    everything = [plan for plan in plans if not plan.features_off and not plan.fault_kinds_off]
    assert everything
    whole = everything[0]
    drawn = replace(
        DRAW_PLAN[engine](whole.seed),
        often=whole.often,
        batch_spread_s=whole.batch_spread_s,
        loses_power_at_end=whole.loses_power_at_end,
    )
    assert whole == drawn
    assert {plan.often for plan in plans} == {"", *BEHAVIOURS}
    assert {plan.batch_spread_s for plan in plans} == ({*BATCH_SPREADS_S} if engine == EMBEDDED else {0.0})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_seed_has_only_faults_of_its_kinds(engine: str) -> None:
    for seed in range(50):
        plan = draw_swarm_plan(seed, engine)
        kinds = fault_kinds_of(plan)
        faults = draw_faults(random.Random(seed), HOSTS, start=0, end=9, count=50, kinds_of_fault=kinds)
        assert not {fault.name for fault in faults} & set(plan.fault_kinds_off)
        assert len(faults) == (50 if kinds else 0)


def test_a_plan_does_without_its_features() -> None:
    plans = [draw_swarm_plan(seed, EMBEDDED) for seed in range(200)]
    for plan in plans:
        assert plan.has("several groups") or len(plan.groups) == 1
        assert plan.has("transactions") or not (plan.transactional_producers or plan.committed_groups)
        assert plan.has("dead letters") or not plan.dead_letter_groups
        assert plan.has("several leaders") or plan.shape.leaders == 1
        behaviour = members_behaviour(plan)
        assert plan.has("rejects") or behaviour.reject == 0
        assert not plan.has("rejects") or behaviour.reject > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_seeds_have_the_activities_of_their_engine(engine: str) -> None:
    plans = [draw_swarm_plan(seed, engine) for seed in range(200)]
    met = Counter(activity for plan in plans for activity in plan.activities)
    assert {*met} == ({*ACTIVITIES, *LATER_ACTIVITIES} if engine == EMBEDDED else {*KAFKA_ACTIVITIES})
    assert min(met.values()) > 20, met
    for plan in plans:
        assert not {*plan.activities} & {*plan.features_off}
        assert all(PART_OF.get(activity, activity) in plan.activities for activity in plan.activities)


def test_a_feature_with_a_stream_of_its_own_changes_no_other_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [draw_swarm_plan(seed, EMBEDDED) for seed in range(50)]
    later = Feature("one more", has_own_stream=True)
    monkeypatch.setattr(swarm, "FEATURES", (*FEATURES[:3], later, *FEATURES[3:]))
    after = [draw_swarm_plan(seed, EMBEDDED) for seed in range(50)]
    assert 0 < sum(not plan.has(later.name) for plan in after) < 50
    for plan, changed in zip(before, after, strict=True):
        others = tuple(name for name in changed.features_off if name != later.name)
        assert replace(changed, features_off=others) == plan


def test_what_a_seed_has_often_its_members_do_more_often() -> None:
    plan = DRAW_PLAN[EMBEDDED](1)
    usual, often = members_behaviour(plan), members_behaviour(replace(plan, often="late acknowledgements"))
    assert often.late == OFTEN * usual.late and often.never == usual.never
    for plan in [draw_swarm_plan(seed, EMBEDDED) for seed in range(200)]:
        assert not plan.often or plan.has(plan.often)


def test_a_fault_counts_as_met_where_it_acted() -> None:
    """Of two hosts whose disk shall refuse writes, one writes nothing; a crash of a host that is down hits nobody."""
    plan = DRAW_PLAN[EMBEDDED](1)
    faults = [
        Fault(1.0, "disk-failure", ("leader-1",), 10.0, 2),
        Fault(1.0, "disk-failure", ("gateway-1",), 10.0, 2),
        Fault(12.0, "crash", ("gateway-1",), 2.0),
        Fault(12.5, "crash", ("gateway-1",), 0.1),
        Fault(13.0, "drops", (), 1.0, 0.2),
        Fault(14.5, "drops", (), 1.0, 0.0),
    ]
    run = SeedRun(plan, faults=faults)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert +run.injector.met == {"disk-failure": 1, "crash": 1, "drops": 1}


def test_a_fault_of_etcd_counts_as_met_where_it_hit_a_call() -> None:
    """Each kind hits three coordinators that work; none hits a coordinator that is down, whatever it was asked for."""
    plan = replace(on_etcd(DRAW_PLAN[EMBEDDED](1)), activities=())
    working, down = ("coordinator-1", "coordinator-2"), ("coordinator-3",)
    names = [kind.name for kind in ETCD_KINDS]
    of_coordinators = [name for name in names if name not in ("etcd-pause", "etcd-restart")]
    faults = [
        Fault(0.5, "crash", down, 60.0),
        *(Fault(1.0 + 2.0 * index, name, working, strength=1.0) for index, name in enumerate(names)),
        *(Fault(1.0 + 2.0 * index, name, down, strength=1.0) for index, name in enumerate(of_coordinators)),
    ]
    run = SeedRun(plan, faults=faults)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert +run.injector.met == {"crash": 1, **dict.fromkeys(names, 1)}


def test_a_fault_impairs_from_its_real_begin_to_its_real_end() -> None:
    """A fault may end later than it was drawn to, or be called off; what ends by itself is not."""
    plan = replace(DRAW_PLAN[EMBEDDED](1), fault_seconds=15.0, activities=())
    faults = [
        Fault(1.0, "pause", ("gateway-1",), 2.0),
        Fault(12.0, "pause", ("leader-1",), 60.0),
        Fault(12.5, "full-link", ("leader-1", "gateway-1"), 5.0),
        Fault(5.0, "cut-clients", (), 0.0, 1.0),
        Fault(0.0, "cut-clients", (), 0.0, 0.0),
    ]
    run = SeedRun(plan, faults=faults)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    start = run.faults[-1].at
    found = {one.name: one for one in run.injector.impairments}
    (first, second) = [one for one in run.injector.impairments if one.name == "pause"]
    assert (round(first.begin - start, 3), round(first.end - start, 3)) == (1.0, 3.0)
    assert (round(second.begin - start, 3), round(second.end - start, 3)) == (12.0, 15.0)
    assert round(found["full-link"].end - start, 3) == 17.5
    assert len(run.injector.impairments) == 4, "a fault that hits no connection is no impairment"
    assert found["cut-clients"].hosts and all(not host.startswith("gateway") for host in found["cut-clients"].hosts)
