"""The clusters of the contract: one in memory, simulated brokers, and Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.kafka.existing_cluster import ExistingCluster
from support.upstream.opened import IN_MEMORY, SIMULATED


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExistingCluster(tmp_path_factory.mktemp("existing")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="package", params=["memory", "simulated", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    without_broker = {"memory": IN_MEMORY, "simulated": SIMULATED}
    found = without_broker.get(request.param)
    return str(request.getfixturevalue("kafka")) if found is None else found
