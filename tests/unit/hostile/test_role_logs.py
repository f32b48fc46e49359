"""What is read out of the roles' log: lines that should not be there, and the refusals that should."""

from __future__ import annotations

import pytest

from support.hostile.role_logs import (
    LATE_S,
    LoggedRefusals,
    correlation_ids,
    lines_in_a_second,
    logged_refusals,
    silent_refusals,
    unexpected_lines,
)


def line(second: int, text: str, level: str = "warning  ") -> str:
    return f"gateway | 2026-11-26T01:00:{second:02}.000000Z [{level}] {text} [kshare_gateway] role=gateway"


def closing(second: int, left_out: int = 0) -> str:
    more = f" ({left_out} such lines were left out before)" if left_out else ""
    return line(second, f"closing connection 7 of /127.0.0.1: API 2 version 17 is not supported{more}")


def test_lines_that_should_not_be_in_a_log() -> None:
    log = "\n".join(
        line(second, "text", level)
        for second, level in ((1, "info     "), (1, "warning  "), (2, "error    "), (2, "info     "), (2, "info     "))
    )
    assert len(unexpected_lines(log)) == 1
    assert len(unexpected_lines(f"{log}\ngateway | Traceback (most recent call last):")) == 2
    assert lines_in_a_second(log) == 3


def test_a_name_with_the_words_of_an_error_is_none_unless_it_forges_a_line() -> None:
    name = "a\\n2026-11-26 [error    ] forged"
    quoted = f'gateway | {{"timestamp": "2026-11-29T14:15:04Z", "event": "denied", "resource_name": "{name}"}}'
    assert not unexpected_lines(f"{quoted}\n{line(1, 'no group ' + name, 'info     ')}")
    forged = name.replace("\\n", "\ngateway | ")
    assert unexpected_lines(line(1, f"no group {forged}", "info     "))


def test_an_error_line_names_its_request() -> None:
    texts = [
        "failed request_id=g1-8270fe-28-77 role=leader\nTraceback",
        "request_id=g2-8270fe-5-3\nrequest_id=g2-8270fe-5-4",
        "request_id=other",
    ]
    assert correlation_ids([*texts, texts[0]]) == [77, 3]


def test_refusals_are_counted_with_those_that_were_left_out() -> None:
    log = "\n".join([closing(1), closing(1, 20), line(2, "Fetch of /127.0.0.1: no such session"), closing(4, 300)])
    found = logged_refusals(log)
    assert (found.lines, found.left_out, found.total) == (3, 320, 323)
    first = min(found.seconds)
    assert found.seconds == {first, first + 3}


SECOND = 1_764_118_801
REFUSED = 1_000


@pytest.mark.parametrize(
    ("count", "closed_at", "problems"),
    [
        (REFUSED, SECOND, 0),
        (REFUSED, SECOND + LATE_S, 0),
        (REFUSED, SECOND + LATE_S + 1, 1),
        (REFUSED // 2, SECOND, 1),
        (REFUSED * 2, SECOND, 1),
        (0, None, 2),
    ],
)
def test_refusals_that_a_log_does_not_tell_of(count: int, closed_at: int | None, problems: int) -> None:
    seconds = frozenset(() if closed_at is None else (closed_at,))
    logged = LoggedRefusals(lines=min(count, 10), left_out=max(0, count - 10), seconds=seconds)
    found = silent_refusals(logged, [(SECOND, SECOND)], refused_whole=REFUSED, refused=REFUSED + 50)
    assert len(found) == problems, found
