"""Damage at any place of a store's files: refused before anything is changed, or told for one family, or harmless."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kshare_core.errors import DamagedFamily, StorageFailure
from kshare_runtime.confirmed_writes import FILE_NAME, ConfirmedWrites
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_files import DamagedFile, examine
from support.runtime.damaged_files import (
    FAMILIES,
    Content,
    content_of_files,
    cut_off,
    damageable_files,
    flipped,
    killed_store,
    needed_logs,
    places_of,
    random_writes,
    scratch_directory,
    without_reserved_length,
    written_bytes,
    zeroed,
)

PLACES = 3
"""Random places in each file that are damaged, besides its first and last byte."""
FILES = 6
"""Of one kind."""


@pytest.fixture(scope="module", params=["reserved", "not reserved"])
def crashed(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Content]]:
    """What a kill -9 leaves of a store with several logs and tables, and what was confirmed."""
    with scratch_directory() as directory:
        path, content = killed_store(directory)
        if request.param == "not reserved":
            without_reserved_length(path)
        yield path, content


def outcome(path: Path, content: Content) -> str:
    """`refused` or `served`, with the families that are damaged; AssertionError for anything silently wrong."""
    before = content_of_files(path)
    try:
        store = RocksStore(path, isolate_damage=True)
    except StorageFailure as failure:
        assert str(path) in str(failure)
        assert "nothing was changed" in str(failure).lower()
        assert content_of_files(path) == before
        return "refused"
    try:
        damaged = []
        for family, rows in content.items():
            try:
                assert dict(store.scan(family, b"")) == rows, f"{family} is wrong, and nobody was told"
            except DamagedFamily as damage:
                assert damage.family == family and "Corruption" in str(damage)
                damaged.append(family)
        assert sorted(store.damaged_families()) == damaged
        store.write([Write(family, b"new", b"1") for family in FAMILIES if family not in damaged])
        return f"served without {damaged[0]}" if damaged else "served"
    finally:
        store.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield directory


@pytest.mark.parametrize("how", [flipped, cut_off, zeroed])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.log", {"refused"}),
        ("MANIFEST-*", {"refused"}),
        ("CURRENT", {"refused"}),
        ("*.sst", {"served", *[f"served without {family}" for family in FAMILIES]}),
        ("OPTIONS-*", {"served"}),
        ("IDENTITY", {"served"}),
        ("rocksdict-config.json", {"served"}),
        (FILE_NAME, {"served"}),
    ],
)
def test_wherever_a_file_is_damaged(
    crashed: tuple[Path, Content],
    scratch: Path,
    pattern: str,
    expected: set[str],
    how: Callable[[bytes, int], bytes],
) -> None:
    directory, content = crashed
    places = random.Random(pattern)
    outcomes: dict[str, int] = {}
    files = [file.name for file in damageable_files(directory, pattern)]
    for name in places.sample(files, min(FILES, len(files))):
        data = (directory / name).read_bytes()
        for place in places_of(written_bytes(directory / name), places, PLACES):
            if (changed := how(data, place)) == data:
                continue
            path = shutil.copytree(directory, scratch / "damaged")
            (path / name).write_bytes(changed)
            found = outcome(path, content)
            outcomes[found] = outcomes.get(found, 0) + 1
            shutil.rmtree(path)
    if pattern == "MANIFEST-*" and how in (cut_off, zeroed):
        # The length that was noted is the one before the newest write; what came after it is still in the logs.
        # Zeros from the beginning of the last record on read like a file that ends there.
        # What is merged since then has lost the tables that it came from, and that is told.
        expected = {*expected, "served", *[f"served without {family}" for family in FAMILIES]}
    assert outcomes and set(outcomes) <= expected
    assert pattern != "*.sst" or any("without" in found for found in outcomes)


@pytest.mark.parametrize("pattern", ["*.log", "CURRENT", "MANIFEST-*", "*.sst"])
def test_any_file_that_is_gone(crashed: tuple[Path, Content], scratch: Path, pattern: str) -> None:
    directory, content = crashed
    files = examine(directory)
    assert files is not None
    tables = [number for family in files.manifest.families.values() for number in family.tables]
    for file in damageable_files(directory, pattern):
        if pattern == "*.sst" and int(file.stem) not in tables:
            continue  # RocksDB was writing or removing it
        path = shutil.copytree(directory, scratch / "damaged")
        (path / file.name).unlink()
        found = outcome(path, content)
        assert found.startswith("served without") if pattern == "*.sst" else found == "refused"
        shutil.rmtree(path)


def test_undamaged_files_are_served_whole(crashed: tuple[Path, Content], scratch: Path) -> None:
    directory, content = crashed
    assert outcome(shutil.copytree(directory, scratch / "copy"), content) == "served"


def test_a_log_that_ends_early_although_another_follows_is_refused_without_the_note(
    crashed: tuple[Path, Content], scratch: Path
) -> None:
    """RocksDB itself opens such a store, and the writes in between are gone."""
    path = shutil.copytree(crashed[0], scratch / "copy")
    (path / FILE_NAME).unlink()
    log = needed_logs(path)[0]
    with log.open("r+b") as file:
        file.truncate(written_bytes(log) - 1)
    with pytest.raises(DamagedFile, match=r"Corruption: .*writes .*number \d+"):
        examine(path)


@pytest.mark.parametrize(("writes_left", "is_refused"), [(10, False), (8, False), (6, False), (5, True), (0, True)])
def test_which_window_a_power_cut_leaves(scratch: Path, writes_left: int, is_refused: bool) -> None:
    """After one, the note may be an older one: what was confirmed since then is not missed if the log's end is gone."""
    store = RocksStore(scratch / "running")
    note = b""
    for number in range(10):
        store.write([Write("log", b"%d" % number, b"v" * 100)])
        if number == 5:
            store.sync_confirmed()
            note = (scratch / "running" / FILE_NAME).read_bytes()
    path = shutil.copytree(scratch / "running", scratch / "left")
    store.close()
    (path / FILE_NAME).write_bytes(note)
    (log,) = needed_logs(path)
    log.write_bytes(log.read_bytes()[: written_bytes(log) // 10 * writes_left])
    if is_refused:
        with pytest.raises(StorageFailure, match=f"confirmed up to number 6, but the files end at {writes_left}"):
            RocksStore(path)
        return
    store = RocksStore(path)
    assert len(list(store.scan("log", b""))) == writes_left
    store.close()


def test_one_damaged_table_refuses_a_store_whose_families_belong_together(
    crashed: tuple[Path, Content], scratch: Path
) -> None:
    path = shutil.copytree(crashed[0], scratch / "copy")
    table = min(path.glob("*.sst"))
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(StorageFailure, match=rf"Corruption: its table {table.name} has \d+ of \d+ bytes .*belongs to"):
        RocksStore(path)


def test_a_damaged_family_can_be_dropped_and_filled_again(crashed: tuple[Path, Content], scratch: Path) -> None:
    directory, content = crashed
    path = shutil.copytree(directory, scratch / "copy")
    manifest = examine(path)
    assert manifest is not None
    family, number = next(
        (family.name, max(family.tables)) for family in manifest.manifest.families.values() if family.tables
    )
    (path / f"{number:06}.sst").write_bytes(b"")
    store = RocksStore(path, isolate_damage=True)
    assert list(store.damaged_families()) == [family]
    store.drop_family(family)
    assert not store.damaged_families()
    assert list(store.scan(family, b"")) == []
    store.write([Write(family, b"k", b"new")])
    store.close()
    store = RocksStore(path)
    assert dict(store.scan(family, b"")) == {b"k": b"new"}
    assert all(dict(store.scan(other, b"")) == rows for other, rows in content.items() if other != family)
    store.close()


def test_a_checkpoint_is_a_whole_store_and_its_damage_is_found(scratch: Path) -> None:
    store = RocksStore(scratch / "running")
    for writes in random_writes(1):
        store.write(writes)
    store.checkpoint(scratch / "backups" / "one")
    expected = {family: dict(store.scan(family, b"")) for family in FAMILIES}
    for writes in random_writes(2):
        store.write(writes)
    with pytest.raises(StorageFailure, match=r"cannot copy the store .*running to .*one"):
        store.checkpoint(scratch / "backups" / "one")
    store.close()
    before = content_of_files(scratch / "backups" / "one")
    copied = RocksStore(scratch / "backups" / "one", read_only=True)
    assert {family: dict(copied.scan(family, b"")) for family in FAMILIES} == expected
    copied.close()
    assert content_of_files(scratch / "backups" / "one") == before
    (manifest,) = (scratch / "backups" / "one").glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(StorageFailure, match="was cut off"):
        RocksStore(scratch / "backups" / "one", read_only=True)


def test_a_read_only_store_must_be_there(scratch: Path) -> None:
    with pytest.raises(StorageFailure, match="does not contain a store"):
        RocksStore(scratch / "none", read_only=True)
    assert not (scratch / "none").exists()


def test_a_store_that_another_process_has_open_is_not_called_damaged(scratch: Path) -> None:
    """Its files change while they are looked at."""
    path = scratch / "a"
    RocksStore(path).close()
    code = (
        "import sys, pathlib; from kshare_runtime.rocks_store import RocksStore; "
        "store = RocksStore(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        (path / "CURRENT").rename(path / "hidden")
        with pytest.raises(StorageFailure, match="Another process has it open"):
            RocksStore(path)
        process.kill()


WRITER = """
import pathlib, random, sys
import kshare_runtime.rocks_store as rocks_store
from kshare_runtime.ports import Write
rocks_store.WRITE_BUFFER_BYTES, rocks_store.WRITE_AHEAD_LOG_BYTES = 64 * 1024, 200_000
store = rocks_store.RocksStore(pathlib.Path(sys.argv[1]))
choices = random.Random(int(sys.argv[2]))
while True:
    number = store._database.latest_sequence_number()
    store.write([Write(f"state-{choices.randrange(4)}", b"%09d" % number, choices.randbytes(1000)) for _ in range(3)])
    print(number, flush=True)
"""


@pytest.mark.parametrize("round_", range(3))
def test_a_kill_at_any_moment_is_never_taken_for_damage(scratch: Path, round_: int) -> None:
    path = scratch / "a"
    confirmed = 0
    for number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(10 * round_ + number)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(40 + 37 * round_ + number):
            confirmed = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        confirmed = max([confirmed, *[int(line) for line in process.stdout.read().split()]])
        process.stdout.close()
        process.wait()
        files = examine(path, ConfirmedWrites(path).logs)
        assert files is not None
        assert files.newest_sequence >= confirmed + 3
    store = RocksStore(path)
    found = [key for family in store.families() for key, _ in store.scan(family, b"")]
    assert b"%09d" % confirmed in found
    store.close()
