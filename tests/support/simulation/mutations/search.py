"""Runs planted bugs over seeds, in several processes, until one finds each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from support.simulation.mutations.catalogue import BY_NAME
from support.simulation.mutations.planted_bug import PlantedBug
from support.simulation.runner import be_quiet
from support.simulation.scenario import SeedRun
from support.simulation.swarm import draw_swarm_plan


class Found(NamedTuple):
    """What the seeds showed of one planted bug."""

    name: str
    seed: int | None
    """The first seed that broke a rule which the bug names."""
    rule: str
    text: str
    others: tuple[str, ...]
    """Other rules that were broken before."""
    cpu_seconds: float


def search(bug: PlantedBug, seeds: Sequence[int]) -> Found:
    """Runs seeds with the bug, and with what its focus gives them, until one finds it."""
    others: dict[str, None] = {}
    started = time.process_time()
    for seed in seeds:
        plan = bug.focus.on(draw_swarm_plan(seed, bug.engine))
        outcome = SeedRun(plan, bug.mutation()).run()
        for violation in outcome.violations:
            if bug.is_found_by(violation):
                spent = time.process_time() - started
                return Found(bug.name, seed, violation.rule, violation.text, tuple(others), spent)
            others[violation.rule] = None
    return Found(bug.name, None, "", "", tuple(others), time.process_time() - started)


def _search_named(name: str, seeds: Sequence[int]) -> Found:
    return search(BY_NAME[name], seeds)


def search_all(names: Sequence[str], seeds: Sequence[int], processes: int) -> Iterator[Found]:
    """What the seeds show of each bug, in the order of the names."""
    search_one = partial(_search_named, seeds=seeds)
    if processes == 1:
        yield from map(search_one, names)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=be_quiet) as pool:
        yield from pool.imap(search_one, names)
