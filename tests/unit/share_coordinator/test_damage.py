"""Damage at many places of every file of a share coordinator's store: refused, or reported, never silently wrong."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_runtime.confirmed_writes import FILE_NAME
from kshare_runtime.ports import Environment
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.maintenance.opening import open_state_store
from kshare_share_coordinator.maintenance.verification import verify
from support.runtime.damaged_files import (
    cut_off,
    damageable_files,
    flipped,
    places_of,
    scratch_directory,
    written_bytes,
    zeroed,
)
from support.runtime.sync_in_loop import SyncInLoop
from support.share_coordinator.killed import KEYS, States, killed_share_coordinator
from support.share_coordinator.shell import ShareCoordinatorShell, read
from support.share_coordinator.single import LoopClock

PLACES = 3
FILES = 6
"""Of one kind."""


@pytest.fixture(scope="module")
def killed() -> Iterator[tuple[Path, States]]:
    with scratch_directory() as directory:
        yield killed_share_coordinator(directory)


def outcome(directory: Path, confirmed: States) -> str:
    """`refused`, `damaged` or `served`; AssertionError where a state is not what was confirmed and nobody was told."""
    environment = Environment(
        clock=LoopClock(),
        random=random.Random(1),
        open_store=lambda name: RocksStore(directory / name, isolate_damage=True, new_sync=SyncInLoop),
    )
    try:
        store = open_state_store(environment)
    except StorageFailure as failure:
        assert "nothing was changed" in str(failure).lower() and "`kshare state verify`" in str(failure)
        return "refused"
    shell = ShareCoordinatorShell(store)
    lost = []
    for key in KEYS:
        result = shell.run(read(key))
        if shell.state_store.damage(key) is not None or result.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            lost.append(key)
        else:
            assert result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert result.state == confirmed[key], f"{key} is wrong, and nobody was told"
    is_reported = any(found.problem_count for found in verify(store))
    assert is_reported or not lost
    assert bool(shell.state_store.problems()) == is_reported
    store.close()
    return "damaged" if is_reported else "served"


def test_an_undamaged_store_has_all_that_was_confirmed(killed: tuple[Path, States]) -> None:
    with scratch_directory() as scratch:
        shutil.copytree(killed[0], scratch / killed[0].name)
        assert outcome(scratch, killed[1]) == "served"
    assert sum(state is not None for state in killed[1].values()) > 5
    assert any(state is not None and state.update_count for state in killed[1].values())


@pytest.mark.parametrize("how", [flipped, cut_off, zeroed])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.log", {"refused"}),
        ("MANIFEST-*", {"refused"}),
        ("CURRENT", {"refused"}),
        ("*.sst", {"served", "damaged"}),
        ("OPTIONS-*", {"served"}),
        ("IDENTITY", {"served"}),
        (FILE_NAME, {"served"}),
    ],
)
def test_wherever_a_file_is_damaged(
    killed: tuple[Path, States], pattern: str, expected: set[str], how: Callable[[bytes, int], bytes]
) -> None:
    path, confirmed = killed
    choices = random.Random(pattern)
    files = damageable_files(path, pattern)
    outcomes: dict[str, int] = {}
    for file in choices.sample(files, min(FILES, len(files))):
        data = file.read_bytes()
        for place in places_of(written_bytes(file), choices, PLACES):
            if (changed := how(data, place)) == data:
                continue
            with scratch_directory() as scratch:
                shutil.copytree(path, scratch / path.name)
                (scratch / path.name / file.name).write_bytes(changed)
                found = outcome(scratch, confirmed)
            outcomes[found] = outcomes.get(found, 0) + 1
    if pattern == "MANIFEST-*" and how is cut_off:
        # The end that came after the newest write: still in the logs, or tables are missing that were merged since.
        expected = {*expected, "served", "damaged"}
    assert outcomes and set(outcomes) <= expected
    assert pattern != "*.sst" or "damaged" in outcomes
