"""Metrics as Prometheus would read them: the samples of a text, by name and labels."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from kshare_servicekit.metric_families import Readings, Source
from kshare_servicekit.metrics_server import Metrics


class Scraped:
    """All samples of one scrape; a name and labels that come twice fail."""

    def __init__(self, text: str) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.families: dict[str, str] = {}
        """Types by name, without `_total`."""
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"{family.name} comes twice"
            self.families[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """The sample of a name without `kshare_` with exactly these labels; KeyError where there is none."""
        return self.samples[f"kshare_{name}", frozenset(labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of the name that have these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.samples.items() if found == f"kshare_{name}" and wanted <= has)

    def labels(self, name: str, label: str) -> set[str]:
        """All values of a label of a metric."""
        return {dict(has)[label] for found, has in self.samples if found == f"kshare_{name}"}


def scrape(address: str) -> Scraped:
    """Asks a process at "host:port"."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return Scraped(answer.read().decode())


async def scraped(metrics: Metrics) -> Scraped:
    """What the process' own server would answer."""
    return Scraped((await metrics.render()).decode())


def measured() -> Metrics:
    """Metrics whose clock is the running event loop's, so that durations under virtual time are exact."""
    metrics = Metrics()
    metrics.now = asyncio.get_running_loop().time
    return metrics


def reading(source: Source) -> Readings:
    """What a source shows now."""
    readings = Readings()
    source.read(readings)
    return readings
