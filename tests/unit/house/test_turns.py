"""The order in which tests of several processes wait for each other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.environment import turns

RUN = "of-test-turns"
TAKER = """
import sys
from support.environment.turns import turn
with turn(quiet=sys.argv[1] == "quiet"):
    print("began", flush=True)
    sys.stdin.readline()
"""
"""A process that runs one test, until it is told to end."""
NOT_YET_S = 0.5
SURELY_S = 30.0


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    yield
    turns.forget(RUN)


@contextmanager
def taker(kind: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, turns.RUN: RUN, "PYTHONPATH": str(Path(turns.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", TAKER, kind], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def begins(process: subprocess.Popen[bytes], within_s: float) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], within_s)[0])


def end(process: subprocess.Popen[bytes]) -> None:
    told, _ = process.communicate(b"end\n", timeout=SURELY_S)
    assert (told, process.returncode) == (b"began\n", 0)


def test_a_quiet_test_runs_alone_and_is_not_kept_waiting_by_later_ones() -> None:
    with taker("plain") as first, taker("plain") as second:
        assert begins(first, SURELY_S)
        assert begins(second, SURELY_S)
        with taker("quiet") as quiet:
            assert not begins(quiet, 2 * NOT_YET_S)
            with taker("plain") as later:
                end(first)
                assert not begins(quiet, NOT_YET_S)
                end(second)
                assert begins(quiet, SURELY_S)
                assert not begins(later, NOT_YET_S)
                end(quiet)
                assert begins(later, SURELY_S)
                end(later)
