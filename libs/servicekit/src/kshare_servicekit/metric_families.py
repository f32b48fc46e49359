"""Metric families with their descriptions, and the samples of one scrape.

Roles count in plain numbers (integers, `kshare_core.distribution`), a few per call or batch and never one per record.
A `Source` reads the numbers of one node: `read` is called at each scrape and adds its samples to `Readings`. The
families are tables in the roles' `metrics` modules; `describe` generates the document of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from kshare_core.distribution import NO_EXEMPLARS, Distribution, Exemplar

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
        """The full name of samples and in queries."""
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
    """The samples of one scrape, by family in the order in which they were added."""

    def __init__(self) -> None:
        self.rows: dict[Family, list[Row]] = {}

    def add(self, family: Family, value: float | Distribution, *labels: str) -> None:
        """Adds one sample; a Distribution for a histogram."""
        assert len(labels) == len(family.labels), f"{family.name} has the labels {family.labels}, not {labels}"
        self.rows.setdefault(family, []).append((labels, value))

    def value(self, name: str, **labels: str) -> float:
        """The value of one sample by its name without the prefix; KeyError if there is none."""
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
    """A source of samples: one node, or the process itself."""

    def read(self, readings: Readings) -> None:
        """Adds all current samples; called on the event loop, and must not block."""
        ...


@runtime_checkable
class PreparedSource(Protocol):
    """A source with so much data that it collects it before a scrape, over several turns of the event loop."""

    async def prepare(self) -> None:
        """Collects data before `read`, which may then return slightly older values."""
        ...


class Format(StrEnum):
    """What a scraper can ask for. OpenMetrics has exemplars; its counters lack `_total` in HELP and TYPE."""

    TEXT = "text"
    OPEN_METRICS = "openmetrics"


def lines_of(
    family: Family, rows: Iterable[tuple[Mapping[str, str], Row]], written_as: Format = Format.TEXT
) -> Iterator[str]:
    """The lines of a family; each row comes with outer labels, which precede its own."""
    name = family.full_name
    is_open = written_as is Format.OPEN_METRICS
    described = f"{NAMESPACE}_{family.name}" if is_open else name
    yield f"# HELP {described} {_escaped(family.help, quotes=is_open)}\n"
    yield f"# TYPE {described} {family.kind}\n"
    for outer, (values, value) in rows:
        pairs = [*outer.items(), *zip(family.labels, values, strict=True)]
        labels = ",".join([f'{label}="{_escaped(text, quotes=True)}"' for label, text in pairs])
        if isinstance(value, Distribution):
            yield from _histogram_lines(name, labels, value, value.exemplars if is_open else NO_EXEMPLARS)
        elif labels:
            yield f"{name}{{{labels}}} {float(value)!r}\n"
        else:
            yield f"{name} {float(value)!r}\n"


def _histogram_lines(
    name: str, labels: str, distribution: Distribution, exemplars: Mapping[int, Exemplar]
) -> Iterator[str]:
    """Exemplars have no times: Prometheus takes that of the first scrape with them, at most one interval later."""
    below = 0
    before = f"{labels}," if labels else ""
    for index, (bound, count) in enumerate(zip([*distribution.bounds, None], distribution.counts, strict=True)):
        below += count
        text = "+Inf" if bound is None else repr(float(bound))
        found = exemplars.get(index)
        after = "" if found is None else f' # {{trace_id="{found.trace_id}"}} {found.value!r}'
        yield f'{name}_bucket{{{before}le="{text}"}} {float(below)!r}{after}\n'
    after = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{after} {float(below)!r}\n"
    yield f"{name}_sum{after} {float(distribution.total)!r}\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    if "\\" in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes and '"' in text else text


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of the metrics document."""

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
