"""Installs what tests need before they run: `PYTHONPATH=tests python -m support.environment.prepare`, as .ci/run does.

Tests install the same things themselves where they are missing, but then within their time limits. Where something
cannot be had here, this says so and goes on; the tests that need it fail or say it again. With CI=true it ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest

from support.environment.chromium import require_chromium
from support.environment.docker import debian_image, images
from support.environment.etcd import require_etcd
from support.environment.helm import require_helm
from support.environment.prometheus import binary
from support.environment.unavailable import is_ci
from support.kafka import class_archive
from support.kafka.java import OLDEST, WITHOUT_SHARE_GROUPS, kafka_jars

PARTS: dict[str, Callable[[], object]] = {
    "Java and Kafka's jars": kafka_jars,
    "Kafka without share groups": lambda: kafka_jars(WITHOUT_SHARE_GROUPS),
    "the oldest Kafka": lambda: kafka_jars(OLDEST),
    "an archive of Kafka's classes": class_archive.make,
    "an archive of the classes of a Kafka without share groups": class_archive.make_of_existing_clusters,
    "etcd": require_etcd,
    "Chromium": require_chromium,
    "Prometheus": lambda: binary("prometheus"),
    "Helm": require_helm,
    "Docker and kshare's images": lambda: (images(), debian_image("prometheus"), debian_image("etcd")),
}


def main(parts: Mapping[str, Callable[[], object]] = PARTS) -> int:
    """1 where something is missing and CI=true: then tests would fail one by one, after half an hour."""
    missing = []
    for what, install in parts.items():
        try:
            install()
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as problem:
            missing.append(what)
            print(f"{what}: {type(problem).__name__}: {problem}", flush=True)
        else:
            print(f"{what}: here", flush=True)
    if missing and is_ci():
        print(f"missing, and CI tests everything: {', '.join(missing)}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
