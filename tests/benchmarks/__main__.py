"""Runs the scenarios against Apache Kafka and both set-ups of kshare, all of them warm, and prints the ratios.

How rounds are ordered and counted is said in `rounds`. A ratio above 1 means that kshare is better, for rates and for
times alike. The whole table is the result: the docs quote a named run of it, never its best rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.endpoints import System, secured_kafka, secured_kshare
from benchmarks.paced import many_beside_busy_clients, paced, paced_beside_busy_clients
from benchmarks.plain_clients import PLAIN_SCENARIOS
from benchmarks.processor_time import machine_ticks, processor_ms, resident_mb, stolen_share
from benchmarks.rounds import Samples, measure
from benchmarks.scenarios import SCENARIOS, Scenario, Sizes
from benchmarks.throttled import beside_throttled_clients
from benchmarks.workers import released_records, single_acknowledgements_of_four, small_records
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
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
    "attached, four processes": lambda folder: KshareCluster(folder, engine=TestEngine.KAFKA_PROXY),
    "attached, single process": lambda folder: KshareCluster(
        folder, engine=TestEngine.KAFKA_PROXY, single_process=True
    ),
}
"""kshare in front of an Apache Kafka 3.9.1, which works on the same processors and is counted with kshare.

What producers and ordinary consumers pay for the proxy is the difference from DIRECT, which has no share groups.
"""
OF_ORDINARY_CLIENTS = ("produce", "produce-latency", *PLAIN_SCENARIOS)
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
    "throttled": beside_throttled_clients,
}
# What shall be reached: (figure, set-up) -> ratio.
TARGETS = {
    ("share-consume records/s", "four processes"): 1.0,
    ("share-consume records/s", "single process"): 1.5,
    ("commit_sync per record /s", "four processes"): 1.5,
    ("commit_sync per record /s", "single process"): 1.5,
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


def run(systems: Systems, rounds: int, scenarios: list[str], sizes: Sizes) -> Samples:
    """All systems run from the first sample to the last; only one of them works at a time."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, ExitStack() as started:
        running = {
            name: started.enter_context(start(Path(folder) / str(number)))  # a comma would part two log.dirs
            for number, (name, start) in enumerate(systems.items(), 1)
        }

        def sample(system: str, scenario: str) -> dict[str, float]:
            if system in (DIRECT, FLUSHING) and scenario not in OF_ORDINARY_CLIENTS:
                return {}
            before_ms = _processor_ms(running[system])
            figures = ALL_SCENARIOS[scenario](running[system].bootstrap, sizes)
            figures[f"{scenario} servers' CPU_ms"] = _processor_ms(running[system]) - before_ms
            if scenario == scenarios[-1]:
                figures["servers' memory_mb"] = sum(resident_mb(pid) for pid in _processes(running[system]))
            return figures

        return measure(list(systems), scenarios, rounds, sample, _tell)


def _processor_ms(system: System) -> float:
    """The processor time of a system, with that of the cluster that it is attached to."""
    return sum(processor_ms(pid) for pid in _processes(system))


def _processes(system: System) -> list[int]:
    """The parents of a system's processes, and of the cluster's that it is attached to."""
    upstream = system.upstream if isinstance(system, KshareCluster) else None
    return [system.pid, *([broker.pid for broker in upstream.brokers] if upstream is not None else [])]


def _tell(number: int, system: str, figure: str, value: float) -> None:
    print(f"{f'round {number}' if number else 'warm-up':8} {system:20} {figure:34} {value:12,.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scenario", action="append", choices=sorted(ALL_SCENARIOS), help="default: all")
    parser.add_argument("--records", type=int, default=Sizes().throughput_records)
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--beside", type=Path, help="another checkout of kshare, measured in the same run")
    parser.add_argument("--attached", action="store_true", help="kshare attached to an Apache Kafka 3.9.1")
    parser.add_argument("--secured", action="store_true", help="SASL_SSL and ACLs, for Kafka and for kshare")
    arguments = parser.parse_args()
    if arguments.secured + arguments.attached + bool(arguments.beside) > 1:
        parser.error("only one of --attached, --secured and --beside can be given")
    if arguments.attached:
        systems = ATTACHED
    else:
        systems = SECURED if arguments.secured else SYSTEMS | (beside(arguments.beside) if arguments.beside else {})
    ticks = machine_ticks()
    scenarios = arguments.scenario or list(ALL_SCENARIOS)
    samples = run(systems, arguments.rounds, scenarios, Sizes(throughput_records=arguments.records))
    described = report.description_of_run(arguments.rounds)
    described["security"] = "SASL_SSL with SCRAM-SHA-256, and ACLs" if arguments.secured else "none"
    described["stolen"] = f"{stolen_share(ticks, machine_ticks()):.1%} of the processors' time went to other machines"
    if arguments.json:
        arguments.json.write_text(json.dumps({"run": described, "samples": samples}, indent=2))
    print("\n" + "\n".join(f"{key}: {value}" for key, value in described.items()))
    print("\n" + report.table(samples, KAFKA, list(systems)) + "\n")
    reached = True
    for is_reached, line in report.verdicts(samples, KAFKA, TARGETS):
        print(line)
        reached = reached and is_reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
