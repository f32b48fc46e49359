"""Runs the scenarios against Apache Kafka and both set-ups of kshare in turn, and prints the ratios.

Each round starts one system after the other, so that each has the machine for itself, and every figure is the median
over the rounds. A ratio above 1 means that kshare is better, for rates and for times alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.scenarios import SCENARIOS, Sizes
from support.apache_kafka import ApacheKafka
from support.kshare_cluster import KshareCluster

KAFKA = "Apache Kafka 4.3.1"


class System(Protocol):
    bootstrap: str


SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[System]]] = {
    KAFKA: lambda folder: ApacheKafka(folder),
    "kshare, four processes": lambda folder: KshareCluster(folder),
    "kshare --single-process": lambda folder: KshareCluster(folder, single_process=True),
}
# What the first release shall reach: figure -> set-up -> ratio.
TARGETS = {
    ("share-consume records/s", "kshare, four processes"): 1.0,
    ("share-consume records/s", "kshare --single-process"): 1.5,
    ("commit_sync per record /s", "kshare, four processes"): 1.5,
    ("commit_sync per record /s", "kshare --single-process"): 1.5,
}

Figures = dict[str, dict[str, list[float]]]


def measure(rounds: int, names: list[str], sizes: Sizes) -> Figures:
    """system -> figure -> one sample a round."""
    figures: Figures = {system: {} for system in SYSTEMS}
    for index in range(rounds):
        for system, start in SYSTEMS.items():
            with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, start(Path(folder)) as running:
                for name in names:
                    for figure, value in SCENARIOS[name](running.bootstrap, sizes).items():
                        figures[system].setdefault(figure, []).append(value)
                        print(f"round {index + 1}  {system:26} {figure:28} {value:12,.1f}", flush=True)
    return figures


def ratio(figure: str, ours: float, kafkas: float) -> float:
    return kafkas / ours if figure.endswith("_ms") else ours / kafkas


def report(figures: Figures) -> bool:
    """Prints the table; whether every target was reached."""
    reached = True
    print(f"\n{'figure':28} {KAFKA:>20}", *(f"{name:>34}" for name in SYSTEMS if name != KAFKA))
    for figure, samples in figures[KAFKA].items():
        kafkas = statistics.median(samples)
        cells = []
        for system in SYSTEMS:
            if system == KAFKA:
                continue
            ours = statistics.median(figures[system][figure])
            value = ratio(figure, ours, kafkas)
            target = TARGETS.get((figure, system))
            verdict = "" if target is None else f" (target {target}: {'reached' if value >= target else 'MISSED'})"
            reached = reached and (target is None or value >= target)
            cells.append(f"{ours:12,.1f} x{value:.2f}{verdict:>14}".rjust(34))
        print(f"{figure:28} {kafkas:20,.1f}", *cells)
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS), help="default: all")
    parser.add_argument("--records", type=int, default=Sizes().throughput_records)
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    names = arguments.scenario or list(SCENARIOS)
    figures = measure(arguments.rounds, names, Sizes(throughput_records=arguments.records))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    return 0 if report(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
