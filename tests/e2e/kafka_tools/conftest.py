"""One kshare and one Apache Kafka for the tools' tests of a test process; no test disturbs the others.

`pair` compares with Kafka 4.3.1. In front of an existing cluster it compares with that cluster's release, since most of
what tools ask for is relayed. Tests of share groups then take `share_pair`, which compares with Kafka 4.3.1 always.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.clients.delivery import System, properties_of, running_system
from support.clusters.engines import brokers_of_upstream, is_attached, release_of_answers, upstream_of
from support.kafka.java import NEWEST
from support.kafka.tools import ToolPair

SETTINGS = {"share_coordinator_state_topic_min_isr": "1", "group_initial_rebalance_delay_ms": "0"}
OF_CLUSTERS = {"min_insync_replicas": "1", "default_replication_factor": "1"}
"""What the cluster of one broker behind kshare has in its server.properties, too (`upstream_of`)."""
EARLIEST = "share.auto.offset.reset=earliest"


@pytest.fixture(scope="session")
def kshare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system("kshare", tmp_path_factory.mktemp("kshare"), **SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def pair(kshare: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolPair]:
    with prepared(kshare, tmp_path_factory, release_of_answers()) as tools:
        yield tools


@pytest.fixture(scope="session")
def share_pair(
    kshare: System, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ToolPair]:
    if release_of_answers() == NEWEST:
        yield request.getfixturevalue("pair")
    else:
        with prepared(kshare, tmp_path_factory, NEWEST, first="first-shared") as tools:
            yield tools


@contextmanager
def prepared(
    kshare: System, tmp_path_factory: pytest.TempPathFactory, release: str, first: str = "first"
) -> Iterator[ToolPair]:
    """Where they differ at the start they are made equal: Kafka's internal topics come with the first group, and
    min.insync.replicas is given to all brokers where a cluster was formatted with eligible leader replicas."""
    with ExitStack() as stack:
        kafka = stack.enter_context(_compared_with(tmp_path_factory.mktemp("kafka"), release))
        records_bootstraps = (kshare.records_bootstrap, kafka.bootstrap)
        tools = stack.enter_context(ToolPair((kshare.bootstrap, kafka.bootstrap), records_bootstraps))
        tools.same("kafka-configs", "--alter", "--broker-defaults", "--add-config", "min.insync.replicas=1")
        tools.same("kafka-topics", "--create", "--topic", first, "--replica-assignment", "1")
        tools.same("kafka-console-producer", "--topic", first, typed="one\n")
        reading = ("--topic", first, "--max-messages", "1", "--timeout-ms", "20000")
        tools.same("kafka-console-consumer", *reading, "--group", first, "--from-beginning")
        if release == NEWEST:
            tools.same("kafka-configs", "--alter", "--group", f"{first}-share", "--add-config", EARLIEST)
            tools.same("kafka-console-share-consumer", *reading, "--group", f"{first}-share")
        yield tools


@contextmanager
def _compared_with(folder: Path, release: str) -> Iterator[System]:
    """Apache Kafka with as many brokers as there are behind kshare."""
    if brokers_of_upstream() == 1:
        settings = {**SETTINGS, **(OF_CLUSTERS if is_attached() else {})}
        with running_system("kafka", folder, release=release, **settings) as running:
            yield running
    else:
        with upstream_of(folder, properties_of(SETTINGS), release) as cluster:
            address = cluster.brokers[0].bootstrap
            yield System("kafka", address, address)


@pytest.fixture
def name() -> str:
    """What the names of a test begin with."""
    return f"n{uuid.uuid4().hex[:8]}"
