"""What each process of a system takes of memory: idle, after load, and some time after it: `make bench-memory`.

The systems run one after the other, each on a fresh folder. For each process it tells the resident set (RSS) and the
proportional set (PSS, in which a page that n processes share counts 1/n). Totals are of all processes of a system, the
supervisor of `kshare up` included. Ratios are of RSS to Apache Kafka's in the same run; below 1 is better.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from benchmarks.endpoints import System
from benchmarks.plain_clients import PLAIN_SCENARIOS
from benchmarks.processor_time import with_descendants
from benchmarks.scenarios import SCENARIOS, Scenario, Sizes
from benchmarks.workers import released_records, single_acknowledgements_of_four, small_records
from support.clusters.kshare_cluster import KshareCluster, command_line
from support.kafka.apache_kafka import ApacheKafka

KAFKA = "Apache Kafka 4.3.1"
SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[System]]] = {
    KAFKA: ApacheKafka,
    "four processes": KshareCluster,
    "single process": lambda folder: KshareCluster(folder, single_process=True),
}
LOAD: dict[str, Scenario] = {
    "produce": SCENARIOS["produce"],
    "share": SCENARIOS["share"],
    "small": small_records,
    "released": released_records,
    "single-4": single_acknowledgements_of_four,
    **PLAIN_SCENARIOS,
}
IDLE, LOADED, QUIET = "idle", "after load", "quiet again"
SETTLING_S = 5.0
TARGETS = {IDLE: 0.5, LOADED: 0.8, QUIET: 0.8}


class Memory(NamedTuple):
    """The memory of one process in MB (10⁶ bytes)."""

    rss_mb: float
    pss_mb: float


Reading = dict[str, Memory]
"""Process -> memory."""


def memory_of(pid: int) -> Reading:
    """The memory of a process and its living descendants, by their names."""
    found: Reading = {}
    for process in with_descendants(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it ended since it was listed
            continue
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        found[_name(process)] = Memory(kib["Rss"] * 1024 / 1e6, kib["Pss"] * 1024 / 1e6)
    return found


def _name(pid: int) -> str:
    words = command_line(pid)
    role = next((word.removeprefix("kshare_") for word in words if word.startswith("kshare_")), None)
    return role or ("kshare up" if any(word.endswith("/kshare") for word in words) else Path(words[0]).name)


def run(systems: list[str], scenarios: list[str], sizes: Sizes, quiet_s: float) -> dict[str, dict[str, Reading]]:
    """System -> state -> reading."""
    readings: dict[str, dict[str, Reading]] = {}
    for name in systems:
        with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, SYSTEMS[name](Path(folder)) as system:
            states = readings[name] = {}
            time.sleep(SETTLING_S)
            _note(name, IDLE, states, system.pid)
            for scenario in scenarios:
                LOAD[scenario](system.bootstrap, sizes)
                _note(name, scenario, states, system.pid)
            states[LOADED] = states[scenarios[-1]]
            time.sleep(quiet_s)
            _note(name, QUIET, states, system.pid)
    return readings


def _note(system: str, state: str, states: dict[str, Reading], pid: int) -> None:
    states[state] = memory_of(pid)
    parts = ", ".join(f"{name} {one.rss_mb:.0f}/{one.pss_mb:.0f}" for name, one in states[state].items())
    print(f"{system:20} {state:18} RSS/PSS in MB: {parts}", flush=True)


def _total(reading: Reading) -> Memory:
    return Memory(sum(one.rss_mb for one in reading.values()), sum(one.pss_mb for one in reading.values()))


def report(readings: dict[str, dict[str, Reading]]) -> bool:
    """Prints the table of totals and, where Apache Kafka was measured, whether the targets were reached."""
    print("\n| system | process | " + " | ".join(f"{state} RSS (PSS)_mb" for state in TARGETS) + " |")
    print("|---|---|---|---|---|")
    for name, states in readings.items():
        for process in states[IDLE]:
            print(
                f"| {name} | {process} | " + " | ".join(_cell(states[state].get(process)) for state in TARGETS) + " |"
            )
        print(f"| {name} | all | " + " | ".join(_cell(_total(states[state])) for state in TARGETS) + " |")
    is_reached = True
    for name, states in readings.items():
        if name == KAFKA or KAFKA not in readings:
            continue
        for state, target in TARGETS.items():
            ratio = _total(states[state]).rss_mb / _total(readings[KAFKA][state]).rss_mb
            print(f"{name}, {state}: x{ratio:.2f} of Kafka's RSS (target {target})")
            is_reached = is_reached and ratio <= target
    return is_reached


def _cell(memory: Memory | None) -> str:
    return "-" if memory is None else f"{memory.rss_mb:.0f} ({memory.pss_mb:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="default: all")
    parser.add_argument("--scenario", action="append", choices=list(LOAD), help="default: all")
    parser.add_argument("--records", type=int, default=Sizes().throughput_records)
    parser.add_argument("--quiet-s", type=float, default=60.0, help="how long nothing happens after the load")
    parser.add_argument("--json", type=Path, help="also write every reading to this file")
    arguments = parser.parse_args()
    sizes = Sizes(throughput_records=arguments.records)
    readings = run(arguments.system or list(SYSTEMS), arguments.scenario or list(LOAD), sizes, arguments.quiet_s)
    if arguments.json:
        arguments.json.write_text(json.dumps(readings, indent=2))
    return 0 if report(readings) else 1


if __name__ == "__main__":
    sys.exit(main())
