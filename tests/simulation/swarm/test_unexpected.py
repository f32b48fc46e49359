"""Error lines of nodes fail a seed, unless the simulated disk explains them; one that says "unexpected" always does."""

from __future__ import annotations

import logging

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.memory_store import MemoryDiskFailure
from support.simulation.rules.unexpected import watched_logs

OF_THE_DISK = MemoryDiskFailure("No space left on device")


@pytest.mark.parametrize(
    ("text", "error", "is_noted"),
    [
        ("appends failed: %s", OF_THE_DISK, False),
        ("appends failed: %s", StorageFailure("no disk refused it"), True),
        ("appends failed: %s", ValueError("planted"), True),
        ("Produce failed with an unexpected error: %s", OF_THE_DISK, True),
    ],
)
def test_error_lines(text: str, error: Exception, is_noted: bool) -> None:
    noted: list[str] = []
    with watched_logs(noted.append, lambda host: False):
        logging.getLogger("kshare_leader.node").error(text, error)
        logging.getLogger("kshare_leader.node").warning(text, error)
        logging.getLogger("another.library").error(text, error)
    assert len(noted) == is_noted
