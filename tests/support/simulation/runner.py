"""Many seeds, in several processes."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from support.simulation.cluster import EMBEDDED
from support.simulation.scenario import run_seed


class Result(NamedTuple):
    seed: int
    failed: bool
    report: str
    cpu_seconds: float
    virtual_seconds: float
    steps: int


def _run(seed: int, engine: str) -> Result:
    started = time.process_time()
    outcome = run_seed(seed, engine=engine)
    spent = time.process_time() - started
    report = outcome.report() if outcome.failed else ""
    return Result(seed, outcome.failed, report, spent, outcome.virtual_seconds, outcome.steps)


def run_seeds(seeds: Iterable[int], processes: int, engine: str = EMBEDDED) -> Iterator[Result]:
    """The results in the order in which they come."""
    run = partial(_run, engine=engine)
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=be_quiet) as pool:
        yield from pool.imap_unordered(run, seeds)


def be_quiet() -> None:
    logging.disable(logging.CRITICAL)
