"""One four-process cluster for the tests of a module that do not disturb it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.clusters.kshare_cluster import KshareCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare")) as running:
        yield running


@pytest.fixture
def bootstrap(cluster: KshareCluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def records_bootstrap(cluster: KshareCluster) -> str:
    return cluster.records_bootstrap
