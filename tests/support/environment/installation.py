"""The folder for programs that tests install, and a lock so that one process at a time installs a program.

Tests run in several processes. Packages of Debian and what is fetched once share the lock "packages"; what takes
minutes has a lock of its own, so that it keeps nobody waiting who needs something else. What cannot be had here is
`Missing`, with a text that says what to do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PACKAGES = "packages"
INSTALL_TIMEOUT_S = 600
POLICY = Path("/usr/sbin/policy-rc.d")
"""Where it exists and returns 101, Debian's packages start no services."""


class Missing(RuntimeError):
    """A program is not here and could not be installed; the text says what to do."""


def user_cache() -> Path:
    """The user's cache folder (XDG)."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))


def cache_folder() -> Path:
    """The tests' own part of it."""
    return user_cache() / "kshare-tests"


@contextmanager
def alone(lock_name: str = PACKAGES) -> Iterator[None]:
    """Only one process of this user is in here at a time."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{lock_name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def debian_program(names: Sequence[str], package: str, *also: str) -> str:
    """The path of the first of these programs that is here; installs the Debian packages where none is.

    The caller is `alone`. A package that is installed starts no service.
    """
    found = _on_path(names)
    if found is None:
        _install([package, *also], f"this test needs {' or '.join(names)} on the PATH (Debian: {package})")
        found = _on_path(names)
    if found is None:
        raise Missing(f"apt-get installed {package}, but there is still no {' or '.join(names)} on the PATH")
    return found


def _on_path(names: Sequence[str]) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


def _install(packages: Sequence[str], needed: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(needed)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            command = ["apt-get", "-q", *arguments]
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
            if result.returncode:
                raise Missing(f"{needed}; {' '.join(command)} failed: {result.stderr[-2000:]}")


@contextmanager
def _no_services() -> Iterator[None]:
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
