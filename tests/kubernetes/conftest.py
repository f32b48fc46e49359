"""An installation needs a Kubernetes (`make test-kubernetes`, not `make test`); rendering needs helm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from support.clusters.kubernetes import Kubernetes, cache

_HAS_HELM = shutil.which("helm") is not None or (cache() / "bin" / "helm").exists()

if os.environ.get("KSHARE_TEST_KUBERNETES"):
    collect_ignore_glob: list[str] = []
elif _HAS_HELM:
    collect_ignore_glob = ["test_*_installed.py"]
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Releases and their volumes: a test that found another one's would depend on the order of tests."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Kubernetes = request.getfixturevalue("cluster")
        cluster.uninstall_all()
        cluster.delete_volumes()
