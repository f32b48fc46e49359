"""Runs the scenarios against Apache Kafka and both set-ups of kshare, all of them warm, and prints the ratios.

How rounds are ordered and counted is said in `rounds`. A ratio above 1 means that kshare is better, for rates and for
times alike. The whole table is the result: the docs quote a named run of it, never its best rows.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.endpoints import System, attached_kshare, secured_kafka, secured_kshare
from benchmarks.paced import (
    many_beside_busy_clients,
    paced,
    paced_beside_busy_clients,
    paced_to_ordinary_consumers,
)
from benchmarks.plain_clients import PLAIN_SCENARIOS
from benchmarks.processor_time import resident_mb
from benchmarks.rounds import measure
from benchmarks.run_file import Run
from benchmarks.scaling import flatness
from benchmarks.scaling.scenarios import SCALING_SCENARIOS, ScalingSizes
from benchmarks.scaling.scenarios import TARGETS as FLATNESS_TARGETS
from benchmarks.scenarios import SCENARIOS, Scenario, Sizes
from benchmarks.throttled import beside_throttled_clients
from benchmarks.usage import Usage, costs, usage_of
from benchmarks.workers import released_records, single_acknowledgements_of_four, small_records
from support.clusters.kshare_cluster import KshareCluster
from support.environment.stolen_time import machine_ticks, stolen_share
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.java import WITHOUT_SHARE_GROUPS

KAFKA = "Apache Kafka 4.3.1"
FLUSHING = "Apache Kafka 4.3.1, flushing"
"""Kafka that syncs each batch to disk before it answers, as kshare does."""


Systems = dict[str, Callable[[Path], AbstractContextManager[System]]]

SYSTEMS: Systems = {
    KAFKA: lambda folder: ApacheKafka(folder),
    FLUSHING: lambda folder: ApacheKafka(folder, {"log.flush.interval.messages": "1"}),
    "four processes": lambda folder: KshareCluster(folder),
    "single process": lambda folder: KshareCluster(folder, single_process=True),
}
SECURED: Systems = {
    KAFKA: secured_kafka,
    "four processes": partial(secured_kshare, single_process=False),
    "single process": partial(secured_kshare, single_process=True),
}
DIRECT = "Apache Kafka 3.9.1, direct"
ATTACHED: Systems = {
    KAFKA: lambda folder: ApacheKafka(folder),
    DIRECT: lambda folder: ApacheKafka(folder, release=WITHOUT_SHARE_GROUPS),
    "attached, four processes": partial(attached_kshare, single_process=False),
    "attached, single process": partial(attached_kshare, single_process=True),
}
"""kshare in front of an Apache Kafka 3.9.1, which works on the same processors and is counted with kshare.

What producers and ordinary consumers pay for the proxy is the difference from DIRECT, which has no share groups.
"""
OF_ORDINARY_CLIENTS = ("produce", "produce-latency", "paced-consume", *PLAIN_SCENARIOS)
"""Scenarios of systems that are there to compare these alone."""
ALL_SCENARIOS: dict[str, Scenario] = {
    **SCENARIOS,
    **PLAIN_SCENARIOS,
    "small": small_records,
    "released": released_records,
    "single-4": single_acknowledgements_of_four,
    "paced": paced,
    "paced-busy": paced_beside_busy_clients,
    "paced-busy-5000": many_beside_busy_clients,
    "paced-consume": paced_to_ordinary_consumers,
    "throttled": beside_throttled_clients,
}
RECORDS: dict[str, Callable[[Sizes], int]] = {
    "produce": lambda sizes: sizes.throughput_records,
    "produce-latency": lambda sizes: sizes.latency_records,
    "share": lambda sizes: sizes.throughput_records,
    "single": lambda sizes: sizes.single_records,
    "end-to-end": lambda sizes: sizes.latency_records,
    "consume": lambda sizes: sizes.throughput_records,
    "small": lambda sizes: sizes.throughput_records,
    "released": lambda sizes: sizes.released_records,
    "single-4": lambda sizes: sizes.single_records_of_four,
    "paced": lambda sizes: sizes.paced_records,
    "paced-busy": lambda sizes: sizes.paced_records,
    "paced-busy-5000": lambda sizes: sizes.many_paced_records,
    "paced-consume": lambda sizes: sizes.paced_records,
}
"""How many records a scenario produces, and delivers where it has consumers: costs are told for each of them.

`throttled` is missing: how many records its throttled clients send is not given.
"""
JSON = report.ROOT / "build" / "benchmark.json"
# What shall be reached: (figure, set-up) -> ratio. A latency of at most 1.2 times Kafka's is a ratio of 1 / 1.2.
# The default is one process on two processors, and a process for each role elsewhere.
TARGETS = {
    ("produce records/s", "four processes"): 0.7,
    ("share-consume records/s", "four processes"): 1.5,
    ("share-consume records/s", "single process"): 2.5,
    ("100 B, four consumers records/s", "four processes"): 1.5,
    ("20 % released, four consumers records/s", "four processes"): 1.5,
    ("commit_sync per record /s", "four processes"): 1.5,
    ("commit_sync per record /s", "single process"): 2.0,
    ("commit_sync per record, four consumers /s", "four processes"): 1.5,
    ("paced-busy p50_ms", "four processes"): 1 / 3,
    ("paced-busy p50_ms", "single process"): 1 / 1.2,
    ("paced-busy p99_ms", "single process"): 1.0,
    ("paced-busy-5000 p99_ms", "four processes"): 1.0,
    ("paced servers' CPU, s per million records", "four processes"): 1 / 0.7,
    ("single servers' CPU, s per million records", "four processes"): 1 / 0.6,
    ("share-consume records/s", "attached, four processes"): 0.7,
    ("share-consume records/s", "attached, single process"): 0.7,
    ("commit_sync per record /s", "attached, four processes"): 0.5,
    ("commit_sync per record /s", "attached, single process"): 0.5,
}


def beside(checkout: Path) -> Systems:
    """The systems of another checkout of kshare, to compare two versions in one run."""
    command = checkout.resolve() / ".venv" / "bin" / "kshare"
    if not command.exists():
        raise SystemExit(f"--beside {checkout}: {command} is missing; run make setup there")
    return {
        f"{checkout.name}, four processes": lambda folder: KshareCluster(folder, command=command),
        f"{checkout.name}, single process": lambda folder: KshareCluster(folder, single_process=True, command=command),
    }


class Bench:
    """The systems of a run. All of them run from the first sample to the last; only one of them works at a time."""

    def __init__(self, running: Mapping[str, System], sizes: Sizes, scaling_sizes: ScalingSizes) -> None:
        self._running = running
        self._sizes, self._scaling_sizes = sizes, scaling_sizes
        self.figures: dict[str, list[str]] = {}
        """Scenario -> the names of its figures."""
        self.memory_at_start_mb = {system: self._memory_mb(system) for system in running}
        """Of each system before the first client came."""

    def sample(self, system: str, scenario: str) -> dict[str, float]:
        """One run of a scenario: its figures, and what it cost the servers."""
        if system in (DIRECT, FLUSHING) and scenario not in OF_ORDINARY_CLIENTS:
            return {}
        bootstrap, before = self._running[system].bootstrap, self._usage(system)
        if scenario in SCALING_SCENARIOS:
            meter = partial(self._usage, system)
            figures = SCALING_SCENARIOS[scenario](bootstrap, self._scaling_sizes, meter)
        else:
            figures = ALL_SCENARIOS[scenario](bootstrap, self._sizes)
            after = self._usage(system)
            if scenario in RECORDS:
                figures |= costs(scenario, before, after, RECORDS[scenario](self._sizes))
            else:
                figures[f"{scenario} servers' CPU_ms"] = after.processor_ms - before.processor_ms
        figures[f"{scenario} servers' memory_mb"] = self._memory_mb(system)
        if len(figures) > len(self.figures.get(scenario, ())):
            self.figures[scenario] = list(figures)
        return figures

    def _usage(self, system: str) -> Usage:
        return usage_of(_processes(self._running[system]))

    def _memory_mb(self, system: str) -> float:
        return sum(resident_mb(pid) for pid in _processes(self._running[system]))


def _processes(system: System) -> list[int]:
    """The parents of a system's processes, and of the cluster's that it is attached to."""
    upstream = system.upstream if isinstance(system, KshareCluster) else None
    return [system.pid, *([broker.pid for broker in upstream.brokers] if upstream is not None else [])]


@contextmanager
def started(systems: Systems, sizes: Sizes, scaling_sizes: ScalingSizes) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, ExitStack() as running:
        yield Bench(
            {
                name: running.enter_context(start(Path(folder) / str(number)))  # a comma would part two log.dirs
                for number, (name, start) in enumerate(systems.items(), 1)
            },
            sizes,
            scaling_sizes,
        )


def _tell(number: int, system: str, figure: str, value: float) -> None:
    print(f"{f'round {number}' if number else 'warm-up':8} {system:20} {figure:34} {value:12,.2f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    names = sorted([*ALL_SCENARIOS, *SCALING_SCENARIOS])
    parser.add_argument("--scenario", action="append", choices=names, help="default: all but scaling-…")
    parser.add_argument("--scaling", action="store_true", help="all scenarios scaling-…, besides those of --scenario")
    parser.add_argument("--records", type=int, default=Sizes().throughput_records)
    parser.add_argument(
        "--log-records",
        type=int,
        nargs="+",
        default=ScalingSizes().log_records,
        help="sizes of scaling-log; 10000000 takes a gigabyte for each system, and minutes",
    )
    parser.add_argument("--json", type=Path, default=JSON, help="also write every sample to this file (%(default)s)")
    parser.add_argument("--beside", type=Path, help="another checkout of kshare, measured in the same run")
    parser.add_argument("--attached", action="store_true", help="kshare attached to an Apache Kafka 3.9.1")
    parser.add_argument("--secured", action="store_true", help="SASL_SSL and ACLs, for Kafka and for kshare")
    parser.add_argument("--without-flushing", action="store_true", help="without the Kafka that syncs each batch")
    arguments = parser.parse_args()
    if arguments.secured + arguments.attached + bool(arguments.beside) > 1:
        parser.error("only one of --attached, --secured and --beside can be given")
    return arguments


def _chosen_systems(arguments: argparse.Namespace) -> Systems:
    if arguments.attached:
        return ATTACHED
    if arguments.secured:
        return SECURED
    systems = SYSTEMS | (beside(arguments.beside) if arguments.beside else {})
    return {name: start for name, start in systems.items() if name != FLUSHING or not arguments.without_flushing}


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is stopped leaves no servers behind
    systems = _chosen_systems(arguments)
    chosen = [*(arguments.scenario or []), *(SCALING_SCENARIOS if arguments.scaling else [])]
    scenarios = list(dict.fromkeys(chosen)) or list(ALL_SCENARIOS)
    if not any(scenario in OF_ORDINARY_CLIENTS for scenario in scenarios):
        systems = {name: start for name, start in systems.items() if name not in (DIRECT, FLUSHING)}
    ticks = machine_ticks()
    sizes, scaling_sizes = Sizes(throughput_records=arguments.records), ScalingSizes(log_records=arguments.log_records)
    with started(systems, sizes, scaling_sizes) as bench:
        samples = measure(list(systems), scenarios, arguments.rounds, bench.sample, _tell)
    described = report.description_of_run(arguments.rounds)
    described["security"] = "SASL_SSL with SCRAM-SHA-256, and ACLs" if arguments.secured else "none"
    described["stolen"] = f"{stolen_share(ticks, machine_ticks()):.1%} of the processors' time went to other machines"
    memory = (f"{system} {mb:,.0f} MB" for system, mb in bench.memory_at_start_mb.items())
    described["memory before the first client"] = ", ".join(memory)
    run = Run(described, KAFKA, list(systems), bench.figures, samples)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    run.write(arguments.json)
    return 0 if _told(run) else 1


def _told(run: Run) -> bool:
    """Prints the tables; whether every target that was measured is reached."""
    print("\n" + "\n".join(f"{key}: {value}" for key, value in run.described.items()))
    print("\n" + report.table(run.samples, run.baseline, run.systems) + "\n")
    flat = flatness.table(run.samples, run.systems)
    if flat:
        print(flat + "\n")
    ours = [system for system in run.systems if system not in (KAFKA, DIRECT, FLUSHING)]
    reached = True
    for is_reached, line in (
        *report.verdicts(run.samples, run.baseline, TARGETS),
        *flatness.verdicts(run.samples, FLATNESS_TARGETS, ours),
    ):
        print(line)
        reached = reached and is_reached
    return reached


if __name__ == "__main__":
    sys.exit(main())
