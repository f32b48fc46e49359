"""Tests that measure seconds run while no other test does.

`make test` runs several processes of pytest at once. A test marked `quiet` waits until the tests of the others have
ended, and they wait for it; what fixtures have started idles meanwhile. Waiting is outside of each test's timeout.
Locks of files, which end with the process that holds them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.environment.installation import cache_folder

RUN = "PYTEST_XDIST_TESTRUNUID"
"""Where pytest-xdist says which run its processes are of; there is none where all tests run in one process."""


@contextmanager
def turn(*, quiet: bool) -> Iterator[None]:
    """This process may run one test now: with those of the other processes, or, if `quiet`, alone."""
    run = os.environ.get(RUN)
    if run is None:
        yield
        return
    kind = fcntl.LOCK_EX if quiet else fcntl.LOCK_SH
    with ExitStack() as held:
        # Who waits to be alone holds the door, so that no further test begins meanwhile.
        with _locked(_path(run, "door"), kind):
            held.enter_context(_locked(_path(run, "room"), kind))
        yield


def forget(run: str) -> None:
    """Called when all processes of the run have ended."""
    for name in ("door", "room"):
        _path(run, name).unlink(missing_ok=True)


def _path(run: str, name: str) -> Path:
    return cache_folder() / f"turns-{run}-{name}.lock"


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, kind)
        yield
