"""Problems with an existing cluster: the current ones, and a bounded number of log lines."""

from __future__ import annotations

from kshare_leader.upstream.problems import (
    REPORT_INTERVAL_MS,
    REPORTS_PER_INTERVAL,
    SHOWN_LIMIT,
    SUBJECTS_LIMIT,
    Problems,
)


class Watched:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_ms = 0
        self.problems = Problems(self.lines.append, lambda: self.now_ms)


def test_a_problem_is_reported_when_it_begins_and_when_it_ends() -> None:
    watched = Watched()
    for _ in range(3):
        watched.problems.note("partition a-0", "it is away")
    assert watched.problems.texts() == ["partition a-0: it is away"]
    watched.problems.solved("partition a-0")
    watched.problems.solved("partition a-0")
    assert watched.problems.texts() == []
    begun, ended = watched.lines
    assert "it is away" in begun and "works again" in ended


def test_many_problems_make_few_lines_and_the_next_one_says_how_many_were_left_out() -> None:
    watched = Watched()
    for number in range(2 * SUBJECTS_LIMIT):
        watched.problems.note(f"partition a-{number}", f"{number}")
    assert len(watched.lines) == REPORTS_PER_INTERVAL
    assert len(watched.problems.texts()) == SHOWN_LIMIT + 1
    watched.now_ms += REPORT_INTERVAL_MS
    watched.problems.note("partition b-0", "it is away")
    assert f"{2 * SUBJECTS_LIMIT - REPORTS_PER_INTERVAL} more lines" in watched.lines[-1]
