"""A failing script becomes small, in a bounded time, and fails in the same way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.simulation.evidence import Violation
from support.simulation.faults import Fault
from support.simulation.mutations.catalogue import BY_NAME
from support.simulation.plan import Plan, draw_plan
from support.simulation.scenario import SeedRun, run_script
from support.simulation.seeds.script import Script, draw_script, read_script, rounded, write_script
from support.simulation.seeds.shrink import Shrinker, fitted, signature, signatures

RULE = "delivery count does not grow"
BROKEN = BY_NAME["every delivery counts as the first"].mutation
SECONDS = 20.0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def failing_script() -> Script:
    for seed in range(1, 30):
        plan = replace(draw_plan(seed), records=100, fault_seconds=15.0, fault_count=8, members_per_group=3)
        run = SeedRun(plan, BROKEN())
        if RULE in signatures(run.run()):
            return run.script
    raise AssertionError("no seed found the planted bug")


def drawn(plan: Plan) -> Script:
    return draw_script(plan, plan.shape.host_names())


def test_a_planted_bug_needs_few_steps() -> None:
    script = failing_script()
    started = time.monotonic()
    shrinker = Shrinker(BROKEN, RULE, started + SECONDS)
    small = shrinker.shrink(script)
    assert len(script.faults) >= 8, "those of the plan, and single ones that are drawn beside them"
    assert len(small.faults) <= 1, "the bug needs no fault"
    assert len(small.work) < len(script.work) / 2
    assert len(small.plan.features_off) > 10
    assert RULE in signatures(run_script(small, BROKEN()))
    assert rounded(small) == small


def test_time_that_is_over_leaves_the_script_as_it_is() -> None:
    script = rounded(drawn(replace(draw_plan(1), records=20, fault_count=2)))
    shrinker = Shrinker(None, RULE, time.monotonic() - 1)
    assert shrinker.shrink(script) == script
    assert shrinker.runs == 0


def test_what_has_no_host_or_producer_any_more_is_dropped() -> None:
    whole = drawn(replace(draw_plan(1), transactional_producers=1))
    less = replace(
        whole, plan=replace(whole.plan, transactional_producers=0), faults=(Fault(1.0, "crash", ("leader-9",)),)
    )
    assert {batch.producer[0] for batch in whole.work} == {"p", "t"}
    script = fitted(less)
    assert script.faults == ()
    assert script.plan.fault_count == 0
    assert {batch.producer[0] for batch in script.work} == {"p"}


def test_the_same_bug_is_known_by_what_it_says_without_its_numbers() -> None:
    first = Violation("a bug came to light", "at 3.214 s leader-1 Leader/ShareFetch: KeyError(7)")
    second = Violation("a bug came to light", "at 9.1 s leader-2 Leader/ShareFetch: KeyError(12)")
    other = Violation("a bug came to light", "at 9.1 s leader-2 Leader/Produce: ValueError(12)")
    assert signature(first) == signature(second) != signature(other)
    assert signature(Violation(RULE, "g1/0@3")) == RULE


def test_a_rule_that_is_told_in_several_lines_is_written_and_read(tmp_path: Path) -> None:
    rule = 'did not finish: File "loop.py", line #\n    raise LimitReached()\n'
    path = tmp_path / "kept.toml"
    path.write_text(write_script(drawn(replace(draw_plan(1), records=20)), "A script.", rule=rule))
    assert read_script(path).rule == rule
