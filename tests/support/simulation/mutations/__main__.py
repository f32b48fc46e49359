"""Runs every planted bug over seeds until one finds it, and prints the table (Markdown); exits 1 where none did.

A bug is found when a seed breaks one of the rules that it names. `make mutations` runs all.
"""

from __future__ import annotations

import argparse
import sys
import time

from support.simulation.cluster import EMBEDDED
from support.simulation.mutations.catalogue import BY_NAME, PLANTED
from support.simulation.mutations.search import search_all
from support.simulation.runner import be_quiet


def _seeds_of(name: str) -> str:
    """What the seeds of a bug have beside what they draw."""
    bug = BY_NAME[name]
    return ", ".join(text for text in (bug.engine if bug.engine != EMBEDDED else "", bug.focus.text) if text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m support.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to try for each (default 200)")
    parser.add_argument("--first", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--only", default="", help="only bugs whose feature or name has this text")
    options = parser.parse_args(arguments)
    be_quiet()
    features = {bug.name: feature for feature, bugs in PLANTED.items() for bug in bugs}
    names = [name for name, feature in features.items() if options.only in f"{feature}: {name}"]
    seeds = range(options.first, options.first + options.seeds)
    started = time.monotonic()
    missed = []
    print("| feature | planted bug | seeds have | found by seed | rule |\n| --- | --- | --- | --- | --- |", flush=True)
    for found in search_all(names, seeds, options.processes):
        if found.seed is None:
            missed.append(found.name)
        seed = "**none**" if found.seed is None else str(found.seed)
        rule = f"only: {', '.join(found.others)}" if found.seed is None else found.rule
        print(f"| {features[found.name]} | {found.name} | {_seeds_of(found.name)} | {seed} | {rule} |", flush=True)
    spent_s = time.monotonic() - started
    print(
        f"\n{len(names) - len(missed)} of {len(names)} planted bugs found, within {len(seeds)} seeds, {spent_s:.0f} s"
    )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
