"""The engine that end-to-end tests run on: `pytest --engine kafka-proxy`, or KSHARE_TEST_ENGINE.

embedded      `kshare up` (the default)
kafka-proxy   `kshare attach --mode proxy` in front of an Apache Kafka 3.9.1 that lives as long as the test's cluster
kafka-share   `kshare attach --mode share` likewise; producers and ordinary consumers use the cluster's own address

`KshareCluster` reads the engine, so a test is the same on each. What cannot apply is listed in `engine_exclusions`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from support.kafka.existing_cluster import ExistingCluster
from support.kafka.java import NEWEST, WITHOUT_SHARE_GROUPS

VARIABLE = "KSHARE_TEST_ENGINE"
BROKERS = "KSHARE_TEST_BROKERS"
"""How many brokers the cluster behind kshare has; 1 by default."""
RELEASE = "KSHARE_TEST_UPSTREAM"
"""The release of the cluster behind kshare, 3.9.1 or 4.3.1."""
OF_LISTENERS = ("listener", "advertised.", "ssl.", "sasl.", "authorizer.", "super.users", "kshare.", "security.")
"""Beginnings of settings that are kshare's alone: they are of its listeners, or only it knows them."""


class TestEngine(StrEnum):
    """See the module's text."""

    __test__ = False

    EMBEDDED = "embedded"
    KAFKA_PROXY = "kafka-proxy"
    KAFKA_SHARE = "kafka-share"

    @property
    def mode(self) -> str:
        """The value of `kshare attach --mode`."""
        return self.value.removeprefix("kafka-")


def engine_of_tests() -> TestEngine:
    """The engine that this run of tests was started with."""
    return TestEngine(os.environ.get(VARIABLE) or TestEngine.EMBEDDED)


def is_attached() -> bool:
    """Whether kshare is in front of an existing cluster in this run of tests."""
    return engine_of_tests() is not TestEngine.EMBEDDED


def protocols_of_groups() -> list[str]:
    """The protocols of ordinary consumer groups; Apache Kafka 3.9 has KIP-848 as a preview only, off by default."""
    return ["classic"] if release_of_answers() == WITHOUT_SHARE_GROUPS else ["classic", "consumer"]


@contextmanager
def upstream_of_tests(folder: Path, settings: Mapping[str, str]) -> Iterator[ExistingCluster | None]:
    """A cluster for several KshareClusters, one after the other, of one test; None with the embedded engine.

    with upstream_of_tests(tmp_path / "upstream", {}) as upstream:
        with KshareCluster(tmp_path, upstream=upstream): ...
    """
    if not is_attached():
        yield None
        return
    with upstream_of(folder, settings) as started:
        yield started


def release_of_upstream() -> str:
    return os.environ.get(RELEASE) or WITHOUT_SHARE_GROUPS


def release_of_answers() -> str:
    """The release of Apache Kafka whose answers kshare's clients get where they do not ask for share groups."""
    return release_of_upstream() if is_attached() else NEWEST


def brokers_of_upstream() -> int:
    """How many brokers a client of kshare sees."""
    return int(os.environ.get(BROKERS) or 1) if is_attached() else 1


def upstream_of(folder: Path, settings: Mapping[str, str], release: str | None = None) -> ExistingCluster:
    """The cluster behind kshare, with those of `settings` that a broker has too.

    With another `release` it is a cluster of as many brokers to compare with.
    """
    shared = {name: value for name, value in settings.items() if not name.startswith(OF_LISTENERS)}
    brokers = int(os.environ.get(BROKERS) or 1)
    replicas = {"default.replication.factor": str(brokers), "min.insync.replicas": str(max(1, brokers - 1))}
    return ExistingCluster(
        folder, brokers=brokers, settings={**replicas, **shared}, release=release or release_of_upstream()
    )


@contextmanager
def settings_of_roles(folder: Path) -> Iterator[dict[str, str]]:
    """What roles that a test starts one by one need for this run's engine; the cluster behind them runs meanwhile."""
    engine = engine_of_tests()
    if engine is TestEngine.EMBEDDED:
        yield {}
        return
    with upstream_of(folder, {}) as upstream:
        yield {
            "kshare.engine": "kafka",
            "kshare.metadata.store": "kafka",
            "kshare.upstream.bootstrap.servers": upstream.bootstrap,
            "kshare.upstream.mode": engine.mode,
        }
