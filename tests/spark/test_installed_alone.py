"""The Spark library in an environment of its own: it is installed and imported without any service of kshare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ALL = """
import importlib, pkgutil
from importlib.metadata import distributions
import kshare_spark

for module in pkgutil.walk_packages(kshare_spark.__path__, "kshare_spark."):
    importlib.import_module(module.name)
from kshare_spark.data_source import KshareDataSource
print(KshareDataSource.name(), *sorted(one.name for one in distributions() if one.name.startswith("kshare")))
print(*{"grpcio", "rocksdict", "prometheus-client", "typer"} & {one.name for one in distributions()})
"""


def test_the_library_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "alone")}
    environment.pop("VIRTUAL_ENV", None)
    command = [sys.executable, "-m", "uv", "sync", "--quiet", "--frozen", "--no-dev", "--no-editable"]
    subprocess.run([*command, "--package", "kshare-spark"], cwd=ROOT, env=environment, check=True)
    python = str(tmp_path / "alone" / "bin" / "python")
    printed = subprocess.run(
        [python, "-I", "-c", IMPORT_ALL], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert printed == ["kshare kshare-core kshare-kafka-client kshare-spark kshare-upstream kshare-wire", ""]
