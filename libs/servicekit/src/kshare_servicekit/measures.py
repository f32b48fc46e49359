"""Metrics that are read when somebody asks: families with their meaning, and what a look at a node's counts found.

Roles count in plain numbers (integers, `kshare_core.distribution`), a few for each call or batch and never one for each
record. A `Source` is one node's view of them: `read` is called for each scrape and adds what it sees to `Readings`.
The families are tables in the roles' `measures` modules; `describe` makes the document of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from kshare_core.distribution import Distribution

NAMESPACE = "kshare"


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `name` is without `kshare_` and, of a counter, without `_total`; its unit comes last."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As it is shown to people and asked for in queries."""
        return f"{NAMESPACE}_{self.name}" + ("_total" if self.kind is Kind.COUNTER else "")


def counter(name: str, help_text: str, *labels: str) -> Family:
    return Family(name, Kind.COUNTER, help_text, labels)


def gauge(name: str, help_text: str, *labels: str) -> Family:
    return Family(name, Kind.GAUGE, help_text, labels)


def histogram(name: str, help_text: str, *labels: str) -> Family:
    return Family(name, Kind.HISTOGRAM, help_text, labels)


Row = tuple[tuple[str, ...], float | Distribution]
"""Label values in the order of the family's labels, and the value."""


class Readings:
    """What one look found, by family in the order in which they were added."""

    def __init__(self) -> None:
        self.rows: dict[Family, list[Row]] = {}

    def add(self, family: Family, value: float | Distribution, *labels: str) -> None:
        """One sample; a Distribution for a histogram."""
        assert len(labels) == len(family.labels), f"{family.name} has the labels {family.labels}, not {labels}"
        self.rows.setdefault(family, []).append((labels, value))

    def value(self, name: str, **labels: str) -> float:
        """One sample by its name without the prefix; KeyError where there is none."""
        for family, rows in self.rows.items():
            found = {
                family.full_name.removeprefix(f"{NAMESPACE}_"): 0,
                f"{family.name}_count": 1,
                f"{family.name}_sum": 2,
            }
            if name not in found:
                continue
            for values, value in rows:
                if dict(zip(family.labels, values, strict=True)) == labels:
                    return _part(value, found[name])
        raise KeyError(f"there is no metric {name} with {labels}")


def _part(value: float | Distribution, part: int) -> float:
    if isinstance(value, Distribution):
        return value.total if part == 2 else value.count
    return value


class Source(Protocol):
    """One node's counts, or a process' own."""

    def read(self, readings: Readings) -> None:
        """Adds all samples as they are now; called on the event loop, and must not wait."""
        ...


@runtime_checkable
class PreparedSource(Protocol):
    """A source that looks at so much that it does so before a scrape, in turns of the event loop."""

    async def prepare(self) -> None:
        """Called before `read`; what it found may be a little older then."""
        ...


def lines_of(family: Family, rows: Iterable[tuple[Mapping[str, str], Row]]) -> Iterator[str]:
    """A family in Prometheus' text format, a line at a time; each row comes with labels that are put before its own."""
    name = family.full_name
    yield f"# HELP {name} {_escaped(family.help)}\n"
    yield f"# TYPE {name} {family.kind}\n"
    for outer, (values, value) in rows:
        pairs = [*outer.items(), *zip(family.labels, values, strict=True)]
        labels = ",".join([f'{label}="{_escaped(text, quotes=True)}"' for label, text in pairs])
        if isinstance(value, Distribution):
            yield from _histogram_lines(name, labels, value)
        elif labels:
            yield f"{name}{{{labels}}} {float(value)!r}\n"
        else:
            yield f"{name} {float(value)!r}\n"


def _histogram_lines(name: str, labels: str, distribution: Distribution) -> Iterator[str]:
    below = 0
    before = f"{labels}," if labels else ""
    for bound, count in zip([*distribution.bounds, None], distribution.counts, strict=True):
        below += count
        text = "+Inf" if bound is None else repr(float(bound))
        yield f'{name}_bucket{{{before}le="{text}"}} {float(below)!r}\n'
    after = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{after} {float(below)!r}\n"
    yield f"{name}_sum{after} {float(distribution.total)!r}\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    if "\\" in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes and '"' in text else text


@dataclass(frozen=True, slots=True)
class Chapter:
    """Families that are described together."""

    title: str
    text: str
    families: Sequence[Family]


def describe(introduction: str, chapters: Sequence[Chapter]) -> str:
    """All metrics as a document in Markdown."""
    return "\n".join([introduction.rstrip("\n"), "", *_lines(chapters)])


def _lines(chapters: Sequence[Chapter]) -> Iterator[str]:
    for chapter in chapters:
        yield f"## {chapter.title}"
        yield ""
        yield chapter.text
        yield ""
        yield "| metric | type | labels | meaning |"
        yield "|---|---|---|---|"
        for family in chapter.families:
            labels = ", ".join(family.labels) or "none"
            yield f"| `{family.full_name}` | {family.kind} | {labels} | {family.help.replace('|', '/')} |"
        yield ""
