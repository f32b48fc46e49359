"""A process that asks for short slices gets them, and so do the threads and processes that it starts."""

from __future__ import annotations

import platform
import subprocess
import sys

from kshare_fastpath.switches import VARIABLE

PROGRAM = """
import os, sys, threading
from kshare_fastpath import scheduling
_, call = scheduling._SYSTEM_CALLS[os.uname().machine]
read = lambda: scheduling._read(call).runtime_ns
priority = os.nice(3)
before = read()
found = [scheduling.ask_for_short_slices(), os.nice(0) == priority]
thread = threading.Thread(target=lambda: found.append(read()))
thread.start()
thread.join()
print(before > 100_000 or before == 0, *found)
"""
OF_BATCH_JOBS = """
import os
from kshare_fastpath.scheduling import ask_for_short_slices
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
print(ask_for_short_slices(), os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


def gives_short_slices() -> bool:
    if platform.system() != "Linux":
        return False
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor)) >= (6, 12)


def printed(program: str, variables: dict[str, str] | None = None) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", program], env=variables or {}, capture_output=True, text=True, check=True
    )
    return result.stdout.split()


def test_slices_are_short_and_the_priority_stays() -> None:
    before, is_short, priority_stays, slice_ns = printed(PROGRAM)
    assert (before, priority_stays) == ("True", "True")
    assert (is_short == "True") is (slice_ns == "100000") is gives_short_slices()


def test_a_process_without_them_works() -> None:
    assert printed(PROGRAM, {VARIABLE: "short_slices"})[1] == "False"


def test_a_policy_that_was_chosen_stays() -> None:
    assert printed(OF_BATCH_JOBS) == ["False", "True"]
