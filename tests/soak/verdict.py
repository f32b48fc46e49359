"""Whether a soak passed: nothing lost, nothing redelivered after its confirmation, memory and descriptors flat.

A process that is killed every minute shows no slow leak. So a run of LONG_S or more spares one process of each role
from kills in its second half. Processes that live for long have more memory than such as were killed a moment ago, so
that the halves have trends of their own. All of them have to be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from soak.samples import Sample

WARM_UP_SHARE = 0.25
"""Of the samples: caches fill, and a log has no retention yet."""
NOISE_SHARE = 0.05
LONG_S = 1800.0
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
    logged_failures: int = 0
    """Lines at level ERROR, tracebacks and ends of processes that no fault explains; the first are violations."""
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
    """The larger quartile distance of the first and of the last third, but at least a twentieth of the first median.

    Not that of all samples: a figure that grows by a step would have its own growth as its noise.
    """
    is_measured: bool
    """False: too few samples for a verdict."""
    is_required: bool = False
    """Whether it fails the run if it is not measured."""

    @property
    def is_flat(self) -> bool:
        return self.is_measured and self.last - self.first <= self.noise

    @property
    def passes(self) -> bool:
        return self.is_flat if self.is_measured else not self.is_required

    @property
    def verdict(self) -> str:
        if self.is_measured:
            return "flat" if self.is_flat else "grows"
        return "not measured" if self.is_required else "too short to judge"


def trend(name: str, values: Sequence[float], *, is_required: bool = False) -> Trend:
    """How a figure moved; `values` are its samples in order, with the warm-up."""
    warm = list(values)[int(len(values) * WARM_UP_SHARE) :]
    if len(warm) < 3:
        return Trend(name, 0.0, 0.0, 0.0, is_measured=False, is_required=is_required)
    third = len(warm) // 3
    before, after = warm[:third], warm[-third:]
    first = median(before)
    noise = max(_quartile_distance(before), _quartile_distance(after), NOISE_SHARE * first)
    is_measured = len(values) >= LEAST_SAMPLES
    return Trend(name, first, median(after), noise, is_measured, is_required)


def _quartile_distance(values: Sequence[float]) -> float:
    """How far the middle half of the values spreads; 0 of fewer than two."""
    if len(values) < 2:
        return 0.0
    lower, _, upper = quantiles(values)
    return upper - lower


@dataclass(frozen=True, slots=True)
class Spared:
    """The processes that no fault kills any more, and since when, in seconds since the soak began."""

    names: Collection[str]
    since_s: float


def trends(samples: Sequence[Sample], spared: Spared | None) -> list[Trend]:
    """Of each process until some were spared, and of those from then on; None: of each during the whole run."""
    if spared is None:
        return _trends(samples, "", is_required=False)
    before = [sample for sample in samples if sample.at_s < spared.since_s]
    since = [_of_processes(sample, spared.names) for sample in samples if sample.at_s >= spared.since_s]
    return _trends(before, "", is_required=True) + _trends(since, ", spared", is_required=True)


def restarts_of_spared(samples: Sequence[Sample], spared: Spared) -> list[str]:
    """Processes that no fault killed, and that ended nevertheless, in words."""
    found = []
    for name in spared.names:
        pids = dict.fromkeys(sample.pids.get(name) for sample in samples if sample.at_s >= spared.since_s)
        if len(pids) > 1:
            found.append(f"{name} was spared, and ended nevertheless; its pids were {', '.join(map(str, pids))}")
    return found


def _of_processes(sample: Sample, names: Collection[str]) -> Sample:
    return sample._replace(
        memory_mb={name: value for name, value in sample.memory_mb.items() if name in names},
        descriptors={name: value for name, value in sample.descriptors.items() if name in names},
    )


def _trends(samples: Sequence[Sample], suffix: str, *, is_required: bool) -> list[Trend]:
    """Of memory and descriptors of each process, while it ran; not of the disk, which retention bounds."""
    found: list[Trend] = []
    kinds: dict[str, Callable[[Sample], dict[str, float]]] = {
        "memory, MB": lambda sample: sample.memory_mb,
        "descriptors": lambda sample: {name: float(count) for name, count in sample.descriptors.items()},
    }
    for kind, of in kinds.items():
        names = dict.fromkeys(name for sample in samples for name in of(sample))
        for name in names:
            values = [of(sample)[name] for sample in samples if name in of(sample)]
            found.append(trend(f"{name}: {kind}{suffix}", values, is_required=is_required))
    return found
