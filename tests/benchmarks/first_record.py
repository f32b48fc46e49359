"""Subscribe to first record, of kshare and of Apache Kafka in the same run: `make bench-first-record`.

For each system, one after the other: ten new groups, and ten members that join a running group. Told is the median of
each, in seconds, and how many times as long Kafka takes. The target is 0.3 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from support.clients.first_record import full_topic, of_joining_members, of_new_groups
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.apache_kafka import ApacheKafka

TIMES = 10
TARGET_S = 0.3
KAFKA = "Apache Kafka 4.3.1"
SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[KshareCluster | ApacheKafka]]] = {
    KAFKA: ApacheKafka,
    "kshare, four processes": KshareCluster,
    "kshare --single-process": lambda folder: KshareCluster(folder, single_process=True),
}
FIGURES: dict[str, Callable[[str, str, int], list[float]]] = {
    "first record of a new group": of_new_groups,
    "first record of a member that joins": of_joining_members,
}


def measure(times: int, console: Console) -> dict[str, dict[str, float]]:
    """Figure -> system -> median in seconds."""
    medians: dict[str, dict[str, float]] = {figure: {} for figure in FIGURES}
    for system, start in SYSTEMS.items():
        with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, start(Path(folder)) as running:
            for figure, samples in FIGURES.items():
                taken = samples(running.bootstrap, full_topic(running.bootstrap), times)
                medians[figure][system] = statistics.median(taken)
                shown = " ".join(f"{seconds:.2f}" for seconds in sorted(taken))
                console.print(f"{system}, {figure}: {shown} s")
    return medians


def report(medians: dict[str, dict[str, float]], console: Console) -> bool:
    """Prints the table; whether the target was reached everywhere."""
    table = Table("figure (median)", *SYSTEMS)
    is_reached = True
    for figure, by_system in medians.items():
        kafkas = by_system[KAFKA]
        cells = [f"{kafkas:.2f} s"]
        for system in SYSTEMS:
            if system != KAFKA:
                ours = by_system[system]
                verdict = "" if ours <= TARGET_S else f" (target {TARGET_S} s: MISSED)"
                is_reached = is_reached and ours <= TARGET_S
                cells.append(f"{ours:.2f} s x{kafkas / ours:.1f}{verdict}")
        table.add_row(figure, *cells)
    console.print(table)
    return is_reached


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="samples of each figure")
    given = parser.parse_args(arguments)
    console = Console(width=140)
    return 0 if report(measure(given.times, console), console) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
