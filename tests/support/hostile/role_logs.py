"""What the roles' log has that hostile input must not cause: lines of level error, tracebacks, and too many lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_ERROR = re.compile(r"\[(error|critical)\s*\]")
_SECOND = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def unexpected_lines(text: str) -> list[str]:
    """Lines of level error and above, and first lines of tracebacks; each with the five lines behind it."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        if _ERROR.search(line) or "Traceback (most recent call last)" in line:
            found.append("\n".join(lines[number : number + 6]))
    return found


def lines_in_a_second(text: str) -> int:
    """The most lines that the log has of one second."""
    seconds: Counter[str] = Counter()
    for line in text.splitlines():
        if (match := _SECOND.search(line)) is not None:
            seconds[match.group(1)] += 1
    return max(seconds.values(), default=0)


def kinds_of_lines(log: str, count: int = 15) -> Sequence[tuple[str, int]]:
    """The most frequent lines, without their times and numbers."""
    kinds: Counter[str] = Counter()
    for line in log.splitlines():
        text = line.partition("] ")[2] or line
        kinds[re.sub(r"[0-9a-f]{8,}|\d+", "N", text[:90])] += 1
    return kinds.most_common(count)
