"""The clusters of the contract: one in memory, and Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.kafka.existing_cluster import ExistingCluster
from support.upstream.opened import IN_MEMORY


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExistingCluster(tmp_path_factory.mktemp("existing")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="package", params=["memory", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return IN_MEMORY if request.param == "memory" else str(request.getfixturevalue("kafka"))
