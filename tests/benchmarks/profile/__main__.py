"""The command line, and the samples of a run: `python -m benchmarks.profile`."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks.profile
from benchmarks.__main__ import ALL_SCENARIOS, RECORDS
from benchmarks.profile.samples import Profile, profile_of
from benchmarks.scenarios import Sizes
from support.clusters.kshare_cluster import KshareCluster, children_of, command_line

SAMPLES_PER_S = 300
TOLD = 12
"""How many packages and functions are told of each process."""
PY_SPY = Path(sys.executable).with_name("py-spy")


def thread_ms(pid: int) -> Counter[str]:
    """The processor time of a process's threads in milliseconds, by their names; names may be of several threads."""
    found = Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            running_ns = int((task / "schedstat").read_text().split()[0])
            found[(task / "comm").read_text().strip()] += running_ns // 1000
    return Counter({name: used // 1000 for name, used in found.items()})


def name_of(pid: int) -> str:
    """The role of a process of `kshare up`."""
    words = [word for word in command_line(pid) if word.startswith("kshare_")]
    return words[0] if words else "kshare up"


def profiles(cluster: KshareCluster, scenario: str, sizes: Sizes, runs: int, console: Console) -> None:
    """Profiles all processes of a warm cluster at once, and prints a table for each."""
    pids = [cluster.pid, *children_of(cluster.pid)]
    with tempfile.TemporaryDirectory(prefix="kshare-profile-") as folder:
        outputs = {pid: Path(folder) / str(pid) for pid in pids}
        spies = [
            subprocess.Popen(_py_spy(pid, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for pid, output in outputs.items()
        ]
        before = {pid: thread_ms(pid) for pid in pids}
        for _ in range(runs):
            for figure, value in ALL_SCENARIOS[scenario](cluster.bootstrap, sizes).items():
                console.print(f"{figure:40} {value:12,.1f} (while sampled)")
        used = {pid: thread_ms(pid) - before[pid] for pid in pids}
        for spy in spies:
            spy.send_signal(signal.SIGINT)  # py-spy writes what it has
        for spy in spies:
            spy.wait(60)
        records = runs * RECORDS[scenario](sizes)
        for pid, output in outputs.items():
            console.print(_table(name_of(pid), records, used[pid], profile_of(output.read_text().splitlines())))


def _py_spy(pid: int, output: Path) -> list[str]:
    options = {"--pid": str(pid), "--output": str(output), "--format": "raw", "--rate": str(SAMPLES_PER_S)}
    options["--duration"] = "unlimited"
    return [str(PY_SPY), "record", "--gil", "--nonblocking", *(part for pair in options.items() for part in pair)]


def _table(process: str, records: int, used_ms: Counter[str], found: Profile) -> Table:
    title = f"{process}: {sum(used_ms.values()) * 1000 / records:,.1f} us of CPU per record; {found.samples} samples"
    table = Table("thread", "us per record", "package", "share", "function", "share", title=title)
    threads = [(name, f"{used * 1000 / records:,.2f}") for name, used in used_ms.most_common(TOLD)]
    columns = [threads, *(_shares(counter, found.samples) for counter in (found.packages, found.functions))]
    for number in range(max(map(len, columns))):
        cells = (column[number] if number < len(column) else ("", "") for column in columns)
        table.add_row(*(text for cell in cells for text in cell))
    return table


def _shares(counter: Counter[str], samples: int) -> list[tuple[str, str]]:
    return [(name, f"{count / samples:.1%}") for name, count in counter.most_common(TOLD)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=benchmarks.profile.__doc__)
    parser.add_argument("--scenario", action="append", choices=sorted(RECORDS), required=True)
    parser.add_argument("--single-process", action="store_true")
    parser.add_argument("--runs", type=int, default=3, help="of the scenario, while it is sampled")
    given = parser.parse_args(arguments)
    console = Console(width=180)
    with (
        tempfile.TemporaryDirectory(prefix="kshare-profile-") as folder,
        KshareCluster(Path(folder) / "cluster", single_process=given.single_process) as cluster,
    ):
        for scenario in given.scenario:
            ALL_SCENARIOS[scenario](cluster.bootstrap, Sizes())
            profiles(cluster, scenario, Sizes(), given.runs, console)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
