"""A SparkSession on this machine, whose Python workers run the same Python as the caller."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
}
"""Defaults for a small machine; `options` override them."""


def spark_session(name: str, *, master: str = "local[2]", options: Mapping[str, str] | None = None) -> SparkSession:
    """The process' session, created if there is none. PYSPARK_PYTHON is set, or executors would start python3."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**DEFAULTS, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
