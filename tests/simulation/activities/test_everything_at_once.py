"""A history with three nodes of each role and all activities: each of them does something, and no rule is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from support.simulation.cluster import Shape
from support.simulation.history import CommitSent, CommittedRead, Event, FaultEvent, ForgeryAnswered, LogRead
from support.simulation.plan import (
    ACTIVITIES,
    KAFKA_ACTIVITIES,
    LATER_ACTIVITIES,
    Plan,
    draw_embedded_plan,
    draw_kafka_plan,
)
from support.simulation.scenario import SeedRun

SEED = 3


def with_three_of_each(shape: Shape) -> Shape:
    return replace(shape, coordinators=3, share_coordinators=3, leaders=3, gateways=3)


def happened_in(plan: Plan) -> Counter[str]:
    """How often each kind of event was in the history of the plan, which breaks no rule."""
    run = SeedRun(replace(plan, records=200, fault_count=3, fault_seconds=30.0))
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert run.activities.administrator.lives > 0
    return Counter(_name_of(event) for event in outcome.history.events)


def _name_of(event: Event) -> str:
    if isinstance(event, CommitSent) and event.is_aborted:
        return "aborted"
    return event.name if isinstance(event, FaultEvent) else type(event).__name__


def test_everything_at_once() -> None:
    plan = draw_embedded_plan(SEED)
    shape = with_three_of_each(replace(plan.shape, has_etcd=True))
    happened = happened_in(replace(plan, shape=shape, activities=(*ACTIVITIES, *LATER_ACTIVITIES)))
    of_clients = [kind.__name__ for kind in (CommittedRead, ForgeryAnswered, LogRead)]
    for name in ("moves", "join", "left", "upgrade", "aborted", *of_clients):
        assert happened[name] > 0, f"{name} did not happen: {happened}"


def test_everything_that_the_kafka_engine_has() -> None:
    plan = draw_kafka_plan(SEED)
    happened = happened_in(replace(plan, shape=with_three_of_each(plan.shape), activities=KAFKA_ACTIVITIES))
    for name in ("join", "left", "upgrade", ForgeryAnswered.__name__):
        assert happened[name] > 0, f"{name} did not happen: {happened}"
