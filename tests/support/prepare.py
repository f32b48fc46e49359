"""Installs what tests need before they run: `PYTHONPATH=tests python -m support.prepare`, as .ci/run does.

Tests install the same things themselves where they are missing, but then within their time limits. Where something
cannot be had here, this says so and goes on; the tests that need it fail or say it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from support import class_archive
from support.chromium import require_chromium
from support.docker import debian_image, images
from support.etcd import require_etcd
from support.java import kafka_jars
from support.prometheus import binary

PARTS: dict[str, Callable[[], object]] = {
    "Java and Kafka's jars": kafka_jars,
    "an archive of Kafka's classes": class_archive.make,
    "etcd": require_etcd,
    "Chromium": require_chromium,
    "Prometheus": lambda: binary("prometheus"),
    "Docker and kshare's images": lambda: (images(), debian_image("prometheus"), debian_image("etcd")),
}


def main() -> int:
    for what, install in PARTS.items():
        try:
            install()
        except (Exception, pytest.skip.Exception) as problem:
            print(f"{what}: {type(problem).__name__}: {problem}", flush=True)
        else:
            print(f"{what}: here", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
