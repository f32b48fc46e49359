"""A history with three nodes of each role and all activities: each of them does something, and no rule is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from support.simulation.history import CommittedRead, FaultEvent, ForgeryAnswered
from support.simulation.plan import ACTIVITIES, draw_embedded_plan
from support.simulation.scenario import SeedRun

SEED = 3


def test_everything_at_once() -> None:
    plan = draw_embedded_plan(SEED)
    shape = replace(plan.shape, has_etcd=True, coordinators=3, share_coordinators=3, leaders=3, gateways=3)
    plan = replace(plan, shape=shape, activities=ACTIVITIES, records=200, fault_count=3, fault_seconds=30.0)
    run = SeedRun(plan)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    happened: Counter[str] = Counter()
    for event in outcome.history.events:
        happened[event.name if isinstance(event, FaultEvent) else type(event).__name__] += 1
    for name in ("moves", "join", "left", "upgrade", CommittedRead.__name__, ForgeryAnswered.__name__):
        assert happened[name] > 0, f"{name} did not happen: {happened}"
    assert run.activities.administrator.lives > 0
