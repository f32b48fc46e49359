"""Failures in the logs of a cluster's processes: which lines are, whose they are, and which a fault explains."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from support.clusters.role_logs import Excuse, Failure, failures_in, unexplained

AT = datetime(2026, 11, 29, 13, 54, 32, tzinfo=UTC).timestamp()
UP = """\
kshare listens on 127.0.0.1:10000
             leader | 2026-11-29T13:54:32.000000Z [warning  ] waiting [kshare_leader.node] role=leader
           leader-2 | 2026-11-29T13:54:33.000000Z [error    ] a call failed [kshare] role=leader
            gateway | 2026-11-29T13:54:34.000000Z [info     ] the word [error    ] in a line [kshare]
           leader-2 | Traceback (most recent call last):
           leader-2 |   File "node.py", line 1, in write
           leader-2 | OSError: the first
           leader-2 |
           leader-2 | The above exception was the direct cause of the following exception:
           leader-2 |
           leader-2 | Traceback (most recent call last):
           leader-2 | StorageFailure: the disk is full
           leader-2 | 2026-11-29T13:54:35.000000Z [info     ] started [kshare] role=leader
         supervisor | gateway (pid 9346) was killed by SIGKILL after 26.3 s; restarting it in 0.1 s
"""


def test_a_line_at_level_error_is_found_with_the_exception_that_its_traceback_ends_with() -> None:
    assert failures_in(UP) == [
        Failure("leader-2", AT + 1, "a call failed [kshare] role=leader (StorageFailure: the disk is full)")
    ]


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("            gateway | Traceback (most recent call last):", "gateway"),
        ("            gateway | Fatal Python error: Segmentation fault", "gateway"),
        ("         supervisor | gateway (pid 7) was killed by SIGSEGV after 26.3 s; restarting it in 0.1 s", "gateway"),
        ("         supervisor | leader-2 (pid 7) exited with code 1 after 26.3 s; restarting it in 5 s", "leader-2"),
        ("Traceback (most recent call last):", "supervisor"),
    ],
)
def test_a_crash_is_found_and_has_the_time_of_the_newest_line_before_it(line: str, process: str) -> None:
    (_, crash) = failures_in(UP + line)
    assert (crash.process, crash.logged_at) == (process, AT + 3)


def test_lines_of_a_role_that_is_a_process_of_its_own() -> None:
    log = "2026-11-29T13:54:32.000000Z [critical ] no lease [kshare]\n" * 2
    assert failures_in(log, "leader-2") == [Failure("leader-2", AT, "no lease [kshare]")] * 2


@pytest.mark.parametrize(
    ("excuse", "is_explained"),
    [
        (Excuse("leader-2", AT, AT + 2), True),
        (Excuse("leader", AT, AT + 2), False),
        (Excuse("leader-2", AT - 9, AT), False),
        (Excuse("leader-2", AT + 2, AT + 9), False),
    ],
)
def test_a_fault_explains_the_failures_of_its_process_while_it_lasts(excuse: Excuse, is_explained: bool) -> None:
    assert (not list(unexplained(failures_in(UP), [excuse]))) is is_explained
