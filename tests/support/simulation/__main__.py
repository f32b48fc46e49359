"""Runs many seeds, or one again with a trace; see the package's text.

Exits 1 when a seed failed. The failing seeds are printed as they come, each with the command that replays it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.runner import Result, be_quiet, run_seeds
from support.simulation.scenario import Outcome, run_seed


def _replay(seed: int, engine: str, *, trace: bool) -> bool:
    if trace:
        logging.basicConfig(level=logging.INFO, format="            %(name)s: %(message)s", stream=sys.stdout)
    else:
        be_quiet()
    outcome: Outcome = run_seed(seed, engine=engine)
    if trace:
        print("\n".join(outcome.history.lines()))
    print(outcome.report())
    print(f"history {outcome.digest}, {outcome.virtual_seconds:.1f} virtual seconds, {outcome.steps} steps")
    return outcome.failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m support.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default 200)")
    parser.add_argument("--first", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--seed", type=int, help="only this one, in this process")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--engine", choices=(EMBEDDED, KAFKA), default=EMBEDDED, help="the engine (default embedded)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return int(_replay(options.seed, options.engine, trace=options.trace))
    be_quiet()
    started = time.monotonic()
    results: list[Result] = []
    again = "" if options.engine == EMBEDDED else f" --engine {options.engine}"
    for result in run_seeds(range(options.first, options.first + options.seeds), options.processes, options.engine):
        results.append(result)
        if result.failed:
            command = f"python -m support.simulation{again} --seed {result.seed} --trace"
            print(f"{result.report}\nagain: {command}\n", flush=True)
    failed = sorted(result.seed for result in results if result.failed)
    print(
        f"{len(results)} seeds in {time.monotonic() - started:.0f} s "
        f"({sum(result.cpu_seconds for result in results) / len(results):.2f} s CPU and "
        f"{sum(result.virtual_seconds for result in results) / len(results):.0f} virtual seconds each); "
        f"{len(failed)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
