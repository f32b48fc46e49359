"""An installation needs a Kubernetes (`make test-kubernetes`, not `make test`); rendering needs helm."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.clusters.kubernetes import Kubernetes

collect_ignore_glob = [] if os.environ.get("KSHARE_TEST_KUBERNETES") else ["test_*_installed.py"]


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Releases and their volumes: a test that found another one's would depend on the order of tests."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Kubernetes = request.getfixturevalue("cluster")
        cluster.uninstall_all()
        cluster.delete_volumes()
