"""The JSON file of a run: every sample, with what a reader needs to judge it. `make bench-report` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rounds import Samples


@dataclass(frozen=True, slots=True)
class Run:
    described: dict[str, str]
    """Commit, day, machine, rounds: name -> text."""
    baseline: str
    """The system that ratios are made to."""
    systems: list[str]
    scenarios: dict[str, list[str]]
    """Scenario -> the names of its figures."""
    samples: Samples

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_run(path: Path) -> Run:
    found = json.loads(path.read_text())
    try:
        return Run(**{name: found[name] for name in Run.__dataclass_fields__})
    except KeyError as error:
        raise SystemExit(
            f"{path}: has no {error}; it is not a file of make bench, or one of an older version"
        ) from None
