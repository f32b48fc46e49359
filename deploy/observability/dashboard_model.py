"""What a dashboard consists of, and the queries that its panels share.

Every selector is of the chosen namespaces and releases. A Prometheus with one cluster has neither label; the variables
are `.*` then, which a missing label matches.
"""

from __future__ import annotations

from typing import NamedTuple

SCOPE = 'namespace=~"$namespace",release=~"$release"'


class Query(NamedTuple):
    """PromQL, and the legend of its series."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A panel over time, or one with the newest value (`is_stat`).

    A stat is red at `bad_from` and above, or, if `is_bad_below`, below it. If `has_exemplars`, points of the last query
    lead to traces.
    """

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    is_stat: bool = False
    bad_from: float | None = None
    is_bad_below: bool = False
    has_exemplars: bool = False


class Variable(NamedTuple):
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str
    selection: str = ""


class Dashboard(NamedTuple):
    title: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


NAMESPACE = Variable("namespace", "kshare_build_info")
RELEASE = Variable("release", "kshare_build_info", 'namespace=~"$namespace"')
OF_A_RELEASE = (NAMESPACE, RELEASE)


def of(metric: str, selection: str = "") -> str:
    """The selector of a metric, in the chosen releases."""
    return f"{metric}{{{SCOPE}{',' if selection else ''}{selection}}}"


def rate(metric: str, by: str, selection: str = "") -> str:
    return f"sum by ({by}) (rate({of(metric, selection)}[$__rate_interval]))"


def total(metric: str, by: str, selection: str = "") -> str:
    return f"sum by ({by}) ({of(metric, selection)})"


def each(metric: str, legend: str = "") -> Query:
    """The gauge of each instance."""
    return Query(total(metric, "instance"), f"{{{{instance}}}} {legend}".strip())


def rates(metric: str, by: str, selection: str = "", legend: str = "") -> Query:
    """Rates by labels, which are the legend."""
    names = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return Query(rate(metric, by, selection), f"{names} {legend}".strip())


def quantiles(metric: str, by: str, selection: str = "") -> tuple[Query, ...]:
    """The median and the 99th percentile of a histogram, by further labels."""
    names = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    inner = f"sum by (le, {by}) (rate({of(metric + '_bucket', selection)}[$__rate_interval]))"
    return tuple(
        Query(f"histogram_quantile({share}, {inner})", f"{names} {name}")
        for share, name in (("0.5", "p50"), ("0.99", "p99"))
    )


def of_processes(expression: str) -> str:
    """A metric of prometheus-client, which other programs have as well: of kshare's processes only."""
    return f"{expression} and on (instance) {of('kshare_build_info')}"


def stat(
    title: str,
    unit: str,
    description: str,
    expression: str,
    *,
    bad_from: float | None = None,
    is_bad_below: bool = False,
) -> Panel:
    return Panel(title, unit, description, (Query(expression, ""),), True, bad_from, is_bad_below)
