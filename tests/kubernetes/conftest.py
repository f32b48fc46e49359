"""These tests need a Kubernetes and are run by `make test-kubernetes`, not by `make test`."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("KSHARE_TEST_KUBERNETES") else ["test_*.py"]
