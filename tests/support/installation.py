"""Where tests keep what they install, and one process at a time that installs it.

Tests run in several processes. Packages of Debian and what is fetched once share the lock "packages"; what takes
minutes has a lock of its own, so that it keeps nobody waiting who needs something else.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = "packages"


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
