"""The bounds of memory, descriptors and log lines: each is reached by some figures, and exceeded by slightly more."""

from __future__ import annotations

import pytest

from support.clusters.kshare_cluster import ROLES
from support.hostile.bounds import (
    DESCRIPTORS_BESIDE_CONNECTIONS,
    GROWTH_LIMIT_BYTES,
    KEPT_LIMIT_BYTES,
    LINES_PER_SECOND_LIMIT,
    LONG_RUN_S,
    RESTED_S,
    SLOPE_LIMIT_BYTES_PER_S,
    exceeded,
    kept,
)
from support.hostile.process_figures import MIB, ProcessFigures

FIRST_BYTES = 64 * MIB
FIRST_DESCRIPTORS = 40
CONNECTIONS = 32
SAMPLES = 100


def figures(
    *,
    seconds: float = 60.0,
    bytes_per_second: float = 0.0,
    peak_bytes: int = 0,
    peak_descriptors: int = 0,
    last_descriptors: int = 0,
) -> ProcessFigures:
    """Grows all the time, and once more in the first half by `peak_bytes` and `peak_descriptors`."""
    samples = []
    for number in range(SAMPLES):
        at = seconds * number / (SAMPLES - 1)
        is_peak = number == SAMPLES // 4
        descriptors = FIRST_DESCRIPTORS + (peak_descriptors if is_peak else 0)
        samples.append((at, int(FIRST_BYTES + at * bytes_per_second) + (peak_bytes if is_peak else 0), descriptors))
    samples[-1] = (*samples[-1][:2], FIRST_DESCRIPTORS + last_descriptors)
    return ProcessFigures(samples)


def problems(found: ProcessFigures, log: str = "") -> list[str]:
    return exceeded({"leader": found}, log, connections=CONNECTIONS)


def test_every_role_has_a_limit_of_its_growth() -> None:
    assert GROWTH_LIMIT_BYTES.keys() == set(ROLES)


@pytest.mark.parametrize(
    ("within", "beyond", "words"),
    [
        (
            figures(peak_bytes=GROWTH_LIMIT_BYTES["leader"]),
            figures(peak_bytes=GROWTH_LIMIT_BYTES["leader"] + MIB),
            "grew by 193 MiB",
        ),
        (
            figures(seconds=LONG_RUN_S, bytes_per_second=SLOPE_LIMIT_BYTES_PER_S * 0.95),
            figures(seconds=LONG_RUN_S, bytes_per_second=SLOPE_LIMIT_BYTES_PER_S * 1.05),
            "KiB/s in the second half",
        ),
        (
            figures(seconds=LONG_RUN_S - 1, bytes_per_second=SLOPE_LIMIT_BYTES_PER_S * 2),
            figures(seconds=LONG_RUN_S, bytes_per_second=SLOPE_LIMIT_BYTES_PER_S * 2),
            "KiB/s in the second half",
        ),
        (
            figures(peak_descriptors=DESCRIPTORS_BESIDE_CONNECTIONS + 2 * CONNECTIONS),
            figures(peak_descriptors=DESCRIPTORS_BESIDE_CONNECTIONS + 2 * CONNECTIONS + 1),
            "had 169 descriptors",
        ),
        (
            figures(last_descriptors=DESCRIPTORS_BESIDE_CONNECTIONS),
            figures(last_descriptors=DESCRIPTORS_BESIDE_CONNECTIONS + 1),
            "kept 105 descriptors",
        ),
    ],
    ids=["memory", "slope", "length-of-the-run", "descriptors", "descriptors-at-the-end"],
)
def test_figures_at_a_bound_and_beyond_it(within: ProcessFigures, beyond: ProcessFigures, words: str) -> None:
    assert not problems(within)
    (found,) = problems(beyond)
    assert words in found and "leader" in found


def test_a_role_with_a_limit_of_its_own() -> None:
    found = figures(last_descriptors=500)
    assert problems(found)
    assert not exceeded({"leader": found}, "", connections=CONNECTIONS, descriptors={"leader": 500})
    assert exceeded({"leader": found}, "", connections=CONNECTIONS, descriptors={"gateway": 500})


def test_log_lines_at_their_bound_and_beyond_it() -> None:
    line = "gateway | 2026-11-26T01:00:02.000000Z [info     ] text"
    assert not problems(figures(), "\n".join([line] * LINES_PER_SECOND_LIMIT))
    assert problems(figures(), "\n".join([line] * (LINES_PER_SECOND_LIMIT + 1)))
    assert "text" in problems(figures(), line.replace("info ", "error"))[0]


def test_memory_that_is_kept_after_the_attack() -> None:
    def found(grown_bytes: int, seconds: float = RESTED_S) -> list[str]:
        samples = [(0.0, FIRST_BYTES * 9, 1), (seconds, FIRST_BYTES + grown_bytes, 1)]
        return kept({"leader": figures()}, {"leader": ProcessFigures(samples)})

    assert not found(KEPT_LIMIT_BYTES)
    assert found(KEPT_LIMIT_BYTES + MIB)
    assert not found(KEPT_LIMIT_BYTES + MIB, RESTED_S / 2), "it may not have been quiet for long enough"
