"""A soak that is ended with SIGTERM stops everything that it started, and writes its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.clients.delivery import wait_for
from support.clusters.kshare_cluster import children_of

TESTS = Path(__file__).parents[2]
START_S, END_S = 180.0, 400.0
PROCESSES = 14
"""Six roles and their supervisor; six workers and the resource tracker of multiprocessing."""

pytestmark = [pytest.mark.real_faults, pytest.mark.timeout(START_S + END_S)]


def descendants_of(pid: int) -> set[int]:
    children = children_of(pid)
    return {*children, *(each for child in children for each in descendants_of(child))}


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigterm_stops_the_cluster_and_the_workers_and_writes_the_report(tmp_path: Path) -> None:
    output, log = tmp_path / "soak", tmp_path / "log"
    command = [sys.executable, "-m", "soak", "--hours", "1", "--rate", "10", "--seed", "1", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with log.open("wb") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_for(lambda: len(descendants_of(process.pid)) >= PROCESSES, "cluster and workers run", START_S)
        started = descendants_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 128 + signal.SIGTERM, log.read_text()
    finally:
        process.kill()
    wait_for(lambda: not any(map(is_alive, started)), f"all of {started} have ended")
    written = json.loads(output.with_suffix(".json").read_text())
    assert written["described"]["ended early"].startswith("by SIGTERM, after ")
    assert (written["totals"]["lost"], written["totals"]["violations"]) == (0, [])
    assert written["totals"]["settled"] > 0
    assert output.with_suffix(".html").exists()
