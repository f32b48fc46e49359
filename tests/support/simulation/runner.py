"""Many seeds, in several processes."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from support.simulation.cluster import LOST_DISKS
from support.simulation.loop import HostDied
from support.simulation.lost_logs import draw_lost_log_run
from support.simulation.scenario import Outcome, run_seed
from support.simulation.seeds.coverage import Counts


class Result(NamedTuple):
    engine: str
    """One of `cluster.VARIANTS`."""
    seed: int
    failed: bool
    report: str
    cpu_seconds: float
    virtual_seconds: float
    steps: int
    coverage: Counts


def run_as(variant: str, seed: int) -> Outcome:
    """The seed as one of `cluster.VARIANTS`."""
    return draw_lost_log_run(seed).run() if variant == LOST_DISKS else run_seed(seed, engine=variant)


def _run(job: tuple[str, int]) -> Result:
    """A run that raises is a seed that failed, and the others go on."""
    engine, seed = job
    started = time.process_time()
    try:
        outcome = run_as(engine, seed)
    except (Exception, asyncio.CancelledError, HostDied):  # any other ends the process, and the pool waits for ever
        report = f"{engine} engine, seed {seed}: the run raised\n{traceback.format_exc()}"
        return Result(engine, seed, True, report, time.process_time() - started, 0.0, 0, Counter())
    spent = time.process_time() - started
    report = outcome.report() if outcome.failed else ""
    return Result(engine, seed, outcome.failed, report, spent, outcome.virtual_seconds, outcome.steps, outcome.coverage)


def run_seeds(jobs: Iterable[tuple[str, int]], processes: int) -> Iterator[Result]:
    """The results in the order in which they come; a job is an engine and a seed."""
    if processes == 1:
        yield from map(_run, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=_start_process) as pool:
        yield from pool.imap_unordered(_run, jobs)


def _start_process() -> None:
    """Ctrl-C is the main process's, which prints what was run until then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_quiet()
    gc.collect()
    gc.freeze()  # each seed ends with a full collection, which then does not look at all modules: 5 % of the time


def be_quiet() -> None:
    logging.disable(logging.CRITICAL)
