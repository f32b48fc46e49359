"""Runs many seeds, or one again with a trace; see the package's text.

The failing seeds are printed as they come, each with the command that replays it; in the end, or after SIGINT or
SIGTERM, what the seeds met (`coverage`). Exits 1 when a seed failed, when not all were run, or when so many seeds did
not meet all that is declared as often as needed (`coverage.needed`). Of fresh seeds, the first that failed is shrunk
for a minute at the end, and its script is printed: a log of CI then has what a test can replay.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from support.simulation.cluster import EMBEDDED, ENGINES, LOST_DISKS, VARIANTS
from support.simulation.mutations.catalogue import BY_NAME
from support.simulation.runner import Result, be_quiet, run_as, run_seeds
from support.simulation.scenario import SeedRun
from support.simulation.seeds import fresh
from support.simulation.seeds.coverage import Counts, needed, not_met, table, together
from support.simulation.seeds.script import write_script
from support.simulation.seeds.shrink import Shrinker, signature
from support.simulation.swarm import draw_swarm_plan

PROGRESS_SEEDS = 500
"""After so many seeds a long run says how far it is."""
FRESH_SHRINK_S = 60.0
"""The limit of the shrinking of a fresh seed that failed."""


def _replay(seed: int, engine: str, *, trace: bool) -> bool:
    if trace:
        logging.basicConfig(level=logging.INFO, format="            %(name)s: %(message)s", stream=sys.stdout)
    else:
        be_quiet()
    outcome = run_as(engine, seed)
    if trace:
        print("\n".join(outcome.history.lines()))
    print(outcome.report())
    print(f"history {outcome.digest}, {outcome.virtual_seconds:.1f} virtual seconds, {outcome.steps} steps")
    return outcome.failed


def _shrink(seed: int, engine: str, mutation: str, seconds: float) -> bool:
    """Prints the shrunk script of a failing seed, or says that it does not fail."""
    be_quiet()
    broken = BY_NAME[mutation].mutation if mutation else None
    run = SeedRun(draw_swarm_plan(seed, engine), broken() if broken else None)
    script, outcome = run.script, run.run()
    if not outcome.failed:
        print(f"seed {seed} does not fail")
        return False
    wanted = signature(outcome.violations[0])
    print(f"{wanted}: {script.size()}", file=sys.stderr, flush=True)

    def report(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    small = Shrinker(broken, wanted, time.monotonic() + seconds, report).shrink(script)
    print(write_script(small, f"Shrunk from seed {seed} of the {engine} engine.", rule=wanted, mutation=mutation))
    return True


def _options(engine: str, seed: int) -> str:
    return f"{'' if engine == EMBEDDED else f'--engine {engine} '}--seed {seed}"


def _print_failure(result: Result) -> None:
    command = f'make simulate SIMULATE="{_options(result.engine, result.seed)} --trace"'
    print(f"{result.report}\nagain, at this commit: {command}", flush=True)
    if result.engine in ENGINES:
        print(f"smaller: {command.replace('--trace', '--shrink')}", flush=True)
    print(flush=True)


def _print_engines(results: Sequence[Result]) -> None:
    """What a seed of each engine took."""
    for engine in dict.fromkeys(result.engine for result in results):
        of_engine = [result for result in results if result.engine == engine]
        print(
            f"{len(of_engine)} of the {engine} engine, "
            f"{sum(result.cpu_seconds for result in of_engine) / len(of_engine):.2f} s CPU and "
            f"{sum(result.virtual_seconds for result in of_engine) / len(of_engine):.0f} virtual seconds each"
        )


def _shrink_first(results: Sequence[Result]) -> None:
    """Prints a small script of the first seed that failed and has one: those with lost disks have none."""
    first = next((result for result in results if result.failed and result.engine in ENGINES), None)
    if first is not None:
        print(f"{_options(first.engine, first.seed)}, shrunk for {FRESH_SHRINK_S:.0f} s at most:", flush=True)
        _shrink(first.seed, first.engine, "", FRESH_SHRINK_S)


def _run(jobs: Sequence[fresh.Job], processes: int, *, are_fresh: bool = False) -> bool:
    """Whether all is well. `are_fresh`: the first seed that failed is shrunk at the end."""
    started = time.monotonic()
    results: list[Result] = []
    met: dict[str, Counts] = {engine: Counter() for engine in dict.fromkeys(engine for engine, _ in jobs)}
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in what a shell runs in the background
        signal.signal(number, signal.default_int_handler)
    try:
        for result in run_seeds(jobs, processes):
            results.append(result)
            met[result.engine].update(result.coverage)
            if result.failed:
                _print_failure(result)
            if len(results) % PROGRESS_SEEDS == 0:
                failures = sum(result.failed for result in results)
                print(f"{len(results)} seeds after {time.monotonic() - started:.0f} s; {failures} failed", flush=True)
    except KeyboardInterrupt:
        print(f"stopped after {len(results)} of {len(jobs)} seeds")
    print(table(met))
    coverage = together(met.values())
    missed = not_met(coverage, met, len(results))
    for item in missed:
        often = f"{coverage[item]} times instead of {needed(item, len(results))}"
        print(f"{len(results)} seeds met too seldom, {often}: {item.table}: {item.name}")
    failed = sorted(_options(result.engine, result.seed) for result in results if result.failed)
    print(f"{len(results)} seeds in {time.monotonic() - started:.0f} s; {len(failed)} failed{':' if failed else ''}")
    _print_engines(results)
    for options in failed:
        print(f"  {options}")
    if are_fresh and len(results) == len(jobs):
        _shrink_first(results)
    return len(results) == len(jobs) and not failed and not missed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m support.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default 200)")
    parser.add_argument("--first", type=int, help="the first one (default 1; with --fresh from date and commit)")
    parser.add_argument("--fresh", type=int, metavar="SEEDS", help="so many fresh seeds of both engines")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--seed", type=int, help="only this one, in this process")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--engine", choices=VARIANTS, default=EMBEDDED, help="the engine (default embedded)")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: print a small script that fails the same way"
    )
    parser.add_argument("--mutation", default="", help="with --shrink: a planted bug (mutations.catalogue)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of --shrink, at most (default 120)")
    options = parser.parse_args(arguments)
    if options.shrink and options.engine == LOST_DISKS:
        parser.error("a seed of lost disks has no script: its producers send until they are answered")
    if options.shrink and options.seed is not None:
        return int(_shrink(options.seed, options.engine, options.mutation, options.seconds))
    if options.seed is not None:
        return int(_replay(options.seed, options.engine, trace=options.trace))
    be_quiet()
    if options.fresh is None:
        first = 1 if options.first is None else options.first
        jobs: Sequence[fresh.Job] = [(options.engine, seed) for seed in range(first, first + options.seeds)]
    else:
        date, commit = fresh.today(), fresh.commit()
        first = fresh.first_seed(date, commit) if options.first is None else options.first
        print(
            f"{options.fresh} fresh seeds from {first} on (of {date} and commit {commit}); the same again: "
            f'make simulate SIMULATE="--fresh {options.fresh} --first {first}"',
            flush=True,
        )
        jobs = fresh.fresh_jobs(first, options.fresh)
    return int(not _run(jobs, options.processes, are_fresh=options.fresh is not None))


if __name__ == "__main__":
    sys.exit(main())
