"""Rounds of scenarios over systems that run side by side, and the medians and quartiles of what they gave.

- Every system is started before anything is measured, and runs every scenario once without being counted: a JVM that
  was just started, or a cache that is still empty, decides no figure.
- In each round every scenario runs on one system after the other, so that its figures lie seconds apart. The order
  rotates from round to round, and its direction changes: no system is always the first or the last one, and none always
  follows the same other, whose dirty pages the disk may still be writing.
- A ratio is made within a round, from neighbouring samples; told are the median and the quartiles of the rounds'
  ratios, and those of the samples. No sample is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Samples = dict[str, dict[str, list[float]]]
"""Figure -> system -> one sample for each round."""
Sampler = Callable[[str, str], Mapping[str, float]]
"""(system, scenario) -> figure -> value."""
Listener = Callable[[int, str, str, float], None]
"""(number of the round, 0 for the warm-up, system, figure, value)."""


class Spread(NamedTuple):
    """Lower quartile, median and upper quartile of some samples."""

    lower: float
    median: float
    upper: float


def spread(samples: Sequence[float]) -> Spread:
    """Quartiles by linear interpolation between the samples."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0])
    return Spread(*statistics.quantiles(samples, n=4, method="inclusive"))


def order(systems: Sequence[str], number: int) -> list[str]:
    """The order of the systems in round `number` (0 is the warm-up): each begins equally often, in both directions."""
    first = number // 2 % len(systems)
    rotated = [*systems[first:], *systems[:first]]
    return rotated[::-1] if number % 2 else rotated


def measure(systems: Sequence[str], scenarios: Sequence[str], rounds: int, sample: Sampler, heard: Listener) -> Samples:
    """One warm-up of everything, which only `heard` gets, then `rounds` counted rounds."""
    samples: Samples = {}
    for number in range(rounds + 1):
        for scenario in scenarios:
            for system in order(systems, number):
                for figure, value in sample(system, scenario).items():
                    heard(number, system, figure, value)
                    if number:
                        samples.setdefault(figure, {}).setdefault(system, []).append(value)
    return samples


LOWER_IS_BETTER = ("_ms", "_mb", "per million records", "bytes per record", "ms per second")


def is_better_when_lower(figure: str) -> bool:
    """Times end in `_ms`, memory in `_mb`, and costs in what they are counted by; everything else is a rate.

    A figure of a scaling scenario has its size behind a comma: `flatness.at_size`.
    """
    return figure.partition(", at ")[0].endswith(LOWER_IS_BETTER)


def ratios(figure: str, ours: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """How much better `ours` is than `baseline` in each round: above 1 is better, for rates and for times alike.

    Empty where a sample is 0, as are the bytes that an ordinary consumer's reads write.
    """
    if not (all(ours) and all(baseline)):
        return []
    pairs = zip(ours, baseline, strict=True)
    if is_better_when_lower(figure):
        return [base / own for own, base in pairs]
    return [own / base for own, base in pairs]
