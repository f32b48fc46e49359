"""Whether a soak passed: nothing lost, nothing redelivered after its confirmation, memory and descriptors flat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from soak.samples import Sample

WARM_UP_SHARE = 0.25
"""Of the samples: caches fill, and a log has no retention yet."""
NOISE_SHARE = 0.05
LEAST_SAMPLES = 40
"""With fewer a slope says nothing."""


@dataclass(slots=True)
class Totals:
    """What was counted over all groups of a soak."""

    produced: int = 0
    aborted: int = 0
    without_answer: int = 0
    """Records whose producer got no answer."""
    deliveries: int = 0
    redeliveries: int = 0
    settled: int = 0
    unconfirmed_accepts: int = 0
    lost: int = 0
    settled_twice: int = 0
    redelivered_after_confirmation: int = 0
    aborted_delivered: int = 0
    dead_letters: int = 0
    ordinary_records: int = 0
    ordinary_commits: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    """The first of each kind, in words."""

    @property
    def is_sound(self) -> bool:
        return not (
            self.lost
            or self.settled_twice
            or self.redelivered_after_confirmation
            or self.aborted_delivered
            or self.violations
        )


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure from the warm-up to the end."""

    name: str
    first: float
    """The median of the first third after the warm-up."""
    last: float
    """The median of the last third."""
    noise: float
    """The quartile distance of all samples after the warm-up, but at least a twentieth of their median."""
    is_measured: bool
    """False: too few samples for a verdict."""

    @property
    def is_flat(self) -> bool:
        return not self.is_measured or self.last - self.first <= self.noise


def trend(name: str, values: Sequence[float]) -> Trend:
    """How a figure moved; `values` are its samples in order, with the warm-up."""
    warm = list(values)[int(len(values) * WARM_UP_SHARE) :]
    if len(warm) < 3:
        return Trend(name, 0.0, 0.0, 0.0, is_measured=False)
    third = len(warm) // 3
    lower, middle, upper = quantiles(warm)
    noise = max(upper - lower, NOISE_SHARE * middle)
    return Trend(name, median(warm[:third]), median(warm[-third:]), noise, is_measured=len(values) >= LEAST_SAMPLES)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Of memory and descriptors of each process, while it ran; not of the disk, which retention bounds."""
    found: list[Trend] = []
    kinds: dict[str, Callable[[Sample], dict[str, float]]] = {
        "memory, MB": lambda sample: sample.memory_mb,
        "descriptors": lambda sample: {name: float(count) for name, count in sample.descriptors.items()},
    }
    for kind, of in kinds.items():
        names = dict.fromkeys(name for sample in samples for name in of(sample))
        for name in names:
            found.append(trend(f"{name}: {kind}", [of(sample)[name] for sample in samples if name in of(sample)]))
    return found
