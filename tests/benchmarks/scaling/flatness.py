"""Whether a figure stays the same while one thing grows: the largest median over its sizes, divided by the smallest.

A scaling scenario gives a figure once for each size, under a name that `at_size` makes: `scaling-groups records/s, at
16`. Flatness needs no baseline: it compares a system with itself, so each system has its own factor. 1.00 is flat.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.rounds import Samples

Series = dict[int, dict[str, list[float]]]
"""Size -> system -> one sample for each round; sizes ascend."""
MARK = ", at "


def at_size(figure: str, size: int) -> str:
    """The name of a figure at one size."""
    return f"{figure}{MARK}{size}"


def series(samples: Samples) -> dict[str, Series]:
    """The figures that were taken at several sizes, without the size in their names."""
    found: dict[str, Series] = {}
    for name, by_system in samples.items():
        figure, mark, size = name.rpartition(MARK)
        if mark and size.isdigit():
            found.setdefault(figure, {})[int(size)] = by_system
    return {figure: dict(sorted(sizes.items())) for figure, sizes in found.items() if len(sizes) > 1}


def per_record(samples: Samples) -> dict[str, Series]:
    """The series that may be flat: not what idle members cost in a second, which is to grow with them."""
    return {figure: sizes for figure, sizes in series(samples).items() if not figure.endswith("per second")}


def factors(sizes: Series) -> dict[str, float]:
    """The factor of each system that has a sample at every size; none where a median is 0."""
    found = {}
    for system in next(iter(sizes.values())):
        if all(system in by_system for by_system in sizes.values()):
            medians = [statistics.median(by_system[system]) for by_system in sizes.values()]
            if min(medians) > 0:
                found[system] = max(medians) / min(medians)
    return found


def table(samples: Samples, systems: Sequence[str]) -> str:
    """A row for each figure at several sizes, with the factor of each system; empty where there is no such figure."""
    rows = []
    for figure, sizes in per_record(samples).items():
        by_system = factors(sizes)
        cells = [f"x{by_system[system]:.2f}" if system in by_system else "-" for system in systems]
        rows.append(f"| {figure} | {', '.join(f'{size:,}' for size in sizes)} | " + " | ".join(cells) + " |")
    if not rows:
        return ""
    head = "| largest median / smallest | sizes | " + " | ".join(systems) + " |"
    return "\n".join([head, "|---" * (2 + len(systems)) + "|", *rows])


def verdicts(samples: Samples, targets: Mapping[str, float], systems: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Whether each figure of `targets` that was measured is flat within its factor, and a line that says so."""
    measured = series(samples)
    for figure, target in targets.items():
        for system, factor in factors(measured[figure]).items() if figure in measured else ():
            if system in systems:
                is_reached = factor <= target
                verdict = "reached" if is_reached else "MISSED"
                yield is_reached, f"{figure}, {system}: flat within x{factor:.2f}, target {target}: {verdict}"
