"""The table of a benchmark run, as Markdown for a terminal and the docs alike, with where and how it was measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.rounds import Samples, Spread, ratios, spread

ROOT = Path(__file__).resolve().parent.parent.parent

Targets = Mapping[tuple[str, str], float]
"""(figure, system) -> the lowest ratio that is wanted."""


def description_of_run(rounds: int) -> dict[str, str]:
    """What a reader needs to judge a figure: commit, day, machine and rounds."""
    return {
        "commit": _output("git", "rev-parse", "--short", "HEAD") + ("" if _is_clean() else ", with changes"),
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{os.cpu_count()} x {_processor_model()}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "rounds": f"{rounds} counted after one that was not",
    }


def table(samples: Samples, baseline: str, systems: Sequence[str]) -> str:
    """A row for each figure: median [quartiles] of each system, and the ratio to the baseline of the same round.

    A system that a figure does not apply to has a dash.
    """
    others = [system for system in systems if system != baseline]
    lines = [
        "| figure | " + " | ".join([baseline, *(text for system in others for text in (system, "ratio"))]) + " |",
        "|---" * (2 + 2 * len(others)) + "|",
    ]
    for figure, by_system in samples.items():
        cells = [figure, shown(spread(by_system[baseline]))]
        for system in others:
            if system not in by_system:
                cells += ["-", "-"]
                continue
            cells += [shown(spread(by_system[system])), ratio_shown(figure, by_system[system], by_system[baseline])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdicts(samples: Samples, baseline: str, targets: Targets) -> Iterator[tuple[bool, str]]:
    """Whether each target that was measured is reached by the median ratio, and a line that says so."""
    for (figure, system), target in targets.items():
        if system in samples.get(figure, {}):
            found = spread(ratios(figure, samples[figure][system], samples[figure][baseline])).median
            is_reached = found >= target
            yield (
                is_reached,
                f"{figure}, {system}: x{found:.2f}, target {target:.2f}: {'reached' if is_reached else 'MISSED'}",
            )


def ratio_shown(figure: str, ours: Sequence[float], baseline: Sequence[float]) -> str:
    """The median ratio with its quartiles; a dash where a sample is 0."""
    by_round = ratios(figure, ours, baseline)
    if not by_round:
        return "-"
    found = spread(by_round)
    return f"**x{found.median:.2f}** [{found.lower:.2f} to {found.upper:.2f}]"


def shown(found: Spread) -> str:
    """The median with its quartiles."""
    digits = 2 if found.median < 10 else 1 if found.median < 100 else 0
    lower, median, upper = (f"{value:,.{digits}f}" for value in found)
    return f"{median} [{lower} to {upper}]"


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _is_clean() -> bool:
    return not _output("git", "status", "--porcelain")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
