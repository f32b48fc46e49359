"""What the delivery history costs: `make bench-delivery-history`.

Two clusters of four processes run beside each other, one with kshare.delivery.history.enable and one without; only one
works at a time. In each round both run every scenario, the first of them changing from round to round, so that whatever
else the machine does hits both. Told are the medians and their ratio; the target is that share-consume loses less than
5 %. Rates vary by a tenth and more from round to round here; the processor time of the cluster's processes for the same
work, told beside them, varies less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.processor_time import processor_ms
from benchmarks.scenarios import SCENARIOS, Sizes
from support.clusters.kshare_cluster import KshareCluster

ROUNDS = 10
WARM_UP_RECORDS = 20_000
TARGET = 0.95
TARGET_FIGURE = "share-consume records/s"
SYSTEMS: dict[str, dict[str, str]] = {"history off": {}, "history on": {"kshare.delivery.history.enable": "true"}}
DEFAULT_SCENARIOS = ("share", "single")

Figures = dict[str, dict[str, list[float]]]
"""Figure -> system -> one sample a round."""


def measure(rounds: int, scenarios: Sequence[str], sizes: Sizes, console: Console) -> Figures:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        off, on = (KshareCluster(Path(folder) / name.replace(" ", "-"), configs) for name, configs in SYSTEMS.items())
        with off, on:
            running = dict(zip(SYSTEMS, (off, on), strict=True))
            for cluster in running.values():
                SCENARIOS["share"](cluster.bootstrap, Sizes(throughput_records=WARM_UP_RECORDS))
            for number in range(rounds):
                for system in list(running)[:: -1 if number % 2 else 1]:
                    for scenario in scenarios:
                        for figure, value in _sample(running[system], scenario, sizes).items():
                            figures.setdefault(figure, {}).setdefault(system, []).append(value)
                            console.print(f"round {number + 1}  {system:12} {figure:32} {value:12,.1f}")
    return figures


def _sample(cluster: KshareCluster, scenario: str, sizes: Sizes) -> dict[str, float]:
    """The scenario's figures, and the processor time that the cluster spent on it, filling the topic included."""
    before = processor_ms(cluster.pid)
    figures = SCENARIOS[scenario](cluster.bootstrap, sizes)
    return {**figures, f"{scenario}: cluster's CPU, ms": processor_ms(cluster.pid) - before}


def report(figures: Figures, console: Console) -> bool:
    """Prints the table; whether the target was reached, where its figure was measured."""
    table = Table("figure (median)", *SYSTEMS, "on / off", "of the rounds' ratios: lower quartile, median, upper")
    is_reached = True
    for figure, samples in figures.items():
        off, on = (statistics.median(samples[system]) for system in SYSTEMS)
        ratio = on / off
        pairs = [with_it / without for without, with_it in zip(*(samples[system] for system in SYSTEMS), strict=True)]
        quartiles = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
        verdict = ""
        if figure == TARGET_FIGURE:
            is_reached = ratio >= TARGET
            verdict = f" (target {TARGET}: {'reached' if is_reached else 'MISSED'})"
        shown = ", ".join(f"{quartile:.3f}" for quartile in quartiles)
        table.add_row(figure, f"{off:,.1f}", f"{on:,.1f}", f"{ratio:.3f}{verdict}", shown)
    console.print(table)
    return is_reached


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS), help="default: share and single")
    parser.add_argument("--records", type=int, default=Sizes().throughput_records)
    given = parser.parse_args(arguments)
    console = Console(width=140)
    sizes = Sizes(throughput_records=given.records)
    figures = measure(given.rounds, given.scenario or DEFAULT_SCENARIOS, sizes, console)
    return 0 if report(figures, console) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
