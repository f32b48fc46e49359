"""Helm for tests that render the chart: the one on the PATH, else one that Go builds into the user's cache.

It needs no cluster. Where it is missing and there is no Go to build it with, Missing says what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from support.environment.installation import Missing, alone, cache_folder

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
BUILD_TIMEOUT_S = 1_800
"""Two minutes where Go has nothing cached and two processors are idle; more on a busy machine."""


def require_helm() -> str:
    """The path of `helm`."""
    found = shutil.which("helm")
    if found:
        return found
    folder = cache_folder() / "bin"
    path = folder / "helm"
    with alone("helm"):
        if not path.exists():
            _build(str(folder))
    return str(path)


def _build(folder: str) -> None:
    if not shutil.which("go"):
        raise Missing("this test needs helm on the PATH (https://helm.sh/docs/intro/install), or Go to build it")
    environment = {**os.environ, "GOBIN": folder, "GOFLAGS": ""}
    command = ["go", "install", HELM]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise Missing(f"this test needs helm on the PATH; {' '.join(command)} failed: {done.stderr[-2000:]}")
