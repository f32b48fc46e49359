"""What a cluster's processes logged as failures: lines at level ERROR or above, tracebacks, and ends of a process.

`failures_in` reads the output of `kshare up`, whose lines begin with the name of their process, or that of one role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

SUPERVISOR = "supervisor"
FROM_PROCESS = re.compile(r" *([a-z][a-z-]*(?:-\d+)?) \| (.*)")
LEVELLED = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) \[(\w+) *\] (.*)")
FAILURE_LEVELS = ("error", "critical")
TRACEBACK = "Traceback (most recent call last):"
CRASHES = ("Fatal Python error", "Exception ignored in", "terminate called", "thread '")
"""How other lines of a process begin that is in trouble: Python's, C++'s and Rust's."""
ENDED = re.compile(r"(?P<process>[\w-]+) \(pid \d+\) (?P<how>.+) after [\d.]+ s; restarting it in [\d.]+ s")
KILLED = "was killed by SIGKILL"
"""How a process ends that a test kills."""


class Failure(NamedTuple):
    """One line that is no ordinary one, with the exception that a traceback after it ends with."""

    process: str
    """As `kshare up` names it: leader-2."""
    logged_at: float
    """Seconds since the epoch; of a line without a time, that of the newest line before it that has one."""
    text: str

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.logged_at):%H:%M:%S} {self.process}: {self.text}"


@dataclass(slots=True)
class _OpenFailure:
    """A failure that further lines of its process may belong to."""

    began_at: float
    text: str
    last: str = ""
    """The last line of its traceback so far."""


class _Reader:
    """Reads a log line by line."""

    def __init__(self) -> None:
        self.found: list[Failure] = []
        self._open: dict[str, _OpenFailure] = {}
        self._newest_at = 0.0

    def read(self, process: str, text: str) -> None:
        levelled = LEVELLED.fullmatch(text)
        if levelled:
            self._close(process)
            self._newest_at = datetime.fromisoformat(levelled[1]).timestamp()
            if levelled[2] in FAILURE_LEVELS:
                self._open[process] = _OpenFailure(self._newest_at, levelled[3])
        elif process in self._open:
            # A traceback's own lines are indented; the exception stands at its end, or before the next traceback.
            if text.strip() and not text.startswith((" ", TRACEBACK)):
                self._open[process].last = text
        elif text.startswith((TRACEBACK, *CRASHES)):
            self._open[process] = _OpenFailure(self._newest_at, text)
        elif (ended := ENDED.fullmatch(text)) and ended["how"] != KILLED:
            self.found.append(Failure(ended["process"], self._newest_at, f"the process {ended['how']}"))

    def end(self) -> None:
        for process in list(self._open):
            self._close(process)

    def _close(self, process: str) -> None:
        failure = self._open.pop(process, None)
        if failure is not None:
            text = f"{failure.text} ({failure.last})" if failure.last else failure.text
            self.found.append(Failure(process, failure.began_at, text))


def failures_in(log: str, process: str = SUPERVISOR) -> list[Failure]:
    """All of a log, in order. `process` is that of lines without a name before them."""
    reader = _Reader()
    for line in log.splitlines():
        prefixed = FROM_PROCESS.fullmatch(line)
        if prefixed:
            reader.read(prefixed[1], prefixed[2])
        else:
            reader.read(process, line)
    reader.end()
    return sorted(reader.found, key=lambda failure: failure.logged_at)


class Excuse(NamedTuple):
    """A fault that explains failures of one process for a while; seconds since the epoch."""

    process: str
    began_at: float
    ended_at: float


def unexplained(failures: Iterable[Failure], excuses: Sequence[Excuse]) -> Iterator[Failure]:
    """The failures outside of all excuses of their process."""
    for failure in failures:
        if not any(
            each.process == failure.process and each.began_at <= failure.logged_at <= each.ended_at for each in excuses
        ):
            yield failure
