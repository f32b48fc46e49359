"""The roles' log under hostile input: lines that it must not have, too many lines, and refusals that it must have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

_ERROR = re.compile(r"^\s*(\w+ \| )?\S+( \S+)? \[(error|critical)\s*\]")
"""Behind the role and the time, or where a client that forges a line would have it: not in a quoted name of a group."""
_SECOND = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_REFUSAL = re.compile(r"closing connection \d+ of ")
_LEFT_OUT = re.compile(r"\((\d+) such lines were left out before\)")
_REQUEST_ID = re.compile(r"request_id=g\d+-[0-9a-f]+-\d+-(\d+)")
LATE_S = 2
"""A line that was left out may be told a second later; another second is for the clocks' rounding."""
COUNT_SHARE, COUNT_ABOUT = 0.03, 30
"""How exact the number of refusals in the log is. A request that a handler refuses by closing its connection shares its
kind of line with those that it answers with an error, so each may tell how many of the other were left out."""


class LoggedRefusals(NamedTuple):
    """The connections that gateways closed, by their log."""

    lines: int
    left_out: int
    seconds: frozenset[int]
    """The seconds since 1970 with such lines."""

    @property
    def total(self) -> int:
        return self.lines + self.left_out


def logged_refusals(log: str) -> LoggedRefusals:
    lines = left_out = 0
    seconds: set[int] = set()
    for line in log.splitlines():
        if _REFUSAL.search(line) is None:
            continue
        lines += 1
        if (found := _LEFT_OUT.search(line)) is not None:
            left_out += int(found.group(1))
        if (match := _SECOND.search(line)) is not None:
            seconds.add(int(datetime.fromisoformat(match.group(1)).replace(tzinfo=UTC).timestamp()))
    return LoggedRefusals(lines, left_out, frozenset(seconds))


def silent_refusals(
    logged: LoggedRefusals, times: Iterable[tuple[int, int]], *, refused_whole: int, refused: int
) -> list[str]:
    """Problems with the log's account of refusals.

    `times`: the seconds in which a refused request was sent, and in which its end was seen. Between `refused_whole` and
    `refused` connections were closed by gateways: of the others, the client ended some itself in the middle of a frame.
    """
    found = [
        f"a connection was closed between {first} and {last} (seconds since 1970), and the log says nothing of it"
        for first, last in sorted(times)
        if logged.seconds.isdisjoint(range(first - 1, last + LATE_S + 1))
    ][:5]
    least = refused_whole * (1 - COUNT_SHARE) - COUNT_ABOUT
    most = refused * (1 + COUNT_SHARE) + COUNT_ABOUT
    if not least <= logged.total <= most:
        found.append(
            f"the log tells of {logged.total} refusals ({logged.lines} lines, {logged.left_out} left out); "
            f"{refused_whole} to {refused} were seen"
        )
    return found


def correlation_ids(lines: Collection[str]) -> list[int]:
    """Those of the clients' requests that `unexpected_lines` belong to, each once."""
    first_lines = [line.partition("\n")[0] for line in lines]
    return list(dict.fromkeys(int(each) for line in first_lines for each in _REQUEST_ID.findall(line)))


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
