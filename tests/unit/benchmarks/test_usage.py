"""What servers use: read from real processes, and divided by the records that it was used for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import ALL_SCENARIOS, RECORDS
from benchmarks.processor_time import processor_ms, written_bytes
from benchmarks.rounds import is_better_when_lower, ratios
from benchmarks.scenarios import Sizes
from benchmarks.usage import Usage, costs

WRITTEN = 4_000_000
CHILD_THAT_WRITES = """
import os, sys
with open(sys.argv[1], "wb") as file:
    file.write(bytes(4_000_000))
    file.flush()
    os.fsync(file.fileno())
print("written", flush=True)
sys.stdin.read()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_costs_are_of_a_record_and_lower_is_better() -> None:
    figures = costs("share", Usage(100.0, 1_000), Usage(350.0, 6_000), 500)
    assert figures == {
        "share servers' CPU, s per million records": 500.0,
        "share disk writes, bytes per record": 10.0,
    }
    assert all(map(is_better_when_lower, figures))


def test_disk_writes_of_a_child_process_are_counted() -> None:
    target = Path(__file__).parent / f".written-{os.getpid()}"  # /tmp may be memory, of which nothing reaches a disk
    command = [sys.executable, "-c", PARENT, CHILD_THAT_WRITES, str(target)]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdin is not None and parent.stdout is not None
            assert parent.stdout.readline() == b"written\n"
            assert WRITTEN <= written_bytes(parent.pid) < WRITTEN * 1.1
            parent.stdin.close()
    finally:
        target.unlink(missing_ok=True)


def test_a_process_that_has_ended_has_used_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert processor_ms(ended.pid) == 0.0
    assert written_bytes(ended.pid) == 0


def test_nothing_written_has_no_ratio() -> None:
    assert ratios("consume disk writes, bytes per record", [0.0, 2.0], [1.0, 2.0]) == []
    assert ratios("consume disk writes, bytes per record", [1.0, 2.0], [0.0, 2.0]) == []


@pytest.mark.parametrize("scenario", sorted(ALL_SCENARIOS))
def test_the_records_of_a_scenario_are_known(scenario: str) -> None:
    if scenario == "throttled":
        assert scenario not in RECORDS
    else:
        assert RECORDS[scenario](Sizes()) > 0
