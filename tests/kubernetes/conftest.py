"""An installation needs a Kubernetes (`make test-kubernetes`, not `make test`); rendering needs helm."""

from __future__ import annotations

import os
import shutil

from support.clusters.kubernetes import cache

_HAS_HELM = shutil.which("helm") is not None or (cache() / "bin" / "helm").exists()

if os.environ.get("KSHARE_TEST_KUBERNETES"):
    collect_ignore_glob: list[str] = []
elif _HAS_HELM:
    collect_ignore_glob = ["test_*_installed.py"]
else:
    collect_ignore_glob = ["test_*.py"]
