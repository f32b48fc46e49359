"""What every ValueFolder does, on a disk and in memory, and what a crash leaves of one in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kshare_runtime.large_values.folder import DiskFolder, ValueFolder
from kshare_runtime.large_values.memory import MemoryDiskError
from kshare_runtime.memory_store import DiskEvents, MemoryDisk
from support.runtime.removals import HeldRemovals, RemovalsAtOnce

Open = Callable[[], ValueFolder]


@pytest.fixture(params=["disk", "memory"])
def open_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same folder each time."""
    disk = MemoryDisk()
    if request.param == "memory":
        return lambda: disk.open_folder("leader")
    return lambda: DiskFolder(tmp_path / "values", removals=RemovalsAtOnce())


def test_values_are_read_where_they_were_written(open_folder: Open) -> None:
    folder = open_folder()
    assert folder.files() == {}
    first, second = folder.create(b"a", "1"), folder.create(b"b", "1")
    first.write([b"one", b"two"], 0)
    first.write([b"three" * number for number in range(1_000)], 6)
    second.write([b"other"], 0)
    first.sync()
    second.sync(anew=True)
    for opened in (folder, open_folder()):
        assert opened.files() == {b"a": {"1": 6 + 5 * sum(range(1_000))}, b"b": {"1": 5}}
        assert opened.read(b"a", "1", 3, 8) == b"twothree"
        assert opened.read(b"b", "1", 2, 9) == b"her", "as much as there is"
        assert opened.read(b"b", "1", 5, 1) == b""
    first.truncate(4)
    assert folder.read(b"a", "1", 0, 9) == b"onet"
    first.close()
    second.close()
    folder.close()


def test_what_is_removed_is_gone(open_folder: Open) -> None:
    folder = open_folder()
    file = folder.create(b"a", "1")
    file.write([b"one"], 0)
    file.close()
    folder.create(b"a", "2").close()
    with pytest.raises(FileExistsError):
        folder.create(b"a", "2")
    assert folder.read(b"a", "1", 0, 3) == b"one"
    assert folder.remove(b"a", "1") == 3 and folder.remove(b"a", "1") == 0
    with pytest.raises(FileNotFoundError):
        folder.read(b"a", "1", 0, 3)
    assert folder.files() == {b"a": {"2": 0}}
    folder.remove(b"a", "2")
    folder.remove_prefix(b"a")
    assert folder.files() == {} and open_folder().files() == {}
    folder.close()


def test_what_waits_for_its_removal_is_gone_for_the_folder_on_a_disk(tmp_path: Path) -> None:
    removals = HeldRemovals()
    folder = DiskFolder(tmp_path, removals=removals)
    for prefix, name in ((b"a", "1"), (b"a", "2"), (b"b", "1")):
        file = folder.create(prefix, name)
        file.write([b"one"], 0)
        file.close()
    assert folder.remove(b"a", "1") == 3 and folder.remove(b"a", "1") == 0
    with pytest.raises(FileNotFoundError):
        folder.read(b"a", "1", 0, 3)
    assert folder.files() == {b"a": {"2": 3}, b"b": {"1": 3}}
    folder.remove(b"a", "2")
    folder.remove_prefix(b"a")
    assert folder.files() == {b"b": {"1": 3}}
    assert DiskFolder(tmp_path).files() == {b"a": {"1": 3, "2": 3}, b"b": {"1": 3}}
    folder.create(b"a", "3").close()
    removals.run()
    for opened in (folder, DiskFolder(tmp_path)):
        assert opened.files() == {b"a": {"3": 0}, b"b": {"1": 3}}
    folder.close()


class AllKept(DiskEvents):
    def bytes_kept(self, data: bytes, position: int) -> bytes:
        return data

    def removed_files_found(self, count: int) -> int:
        return count


@pytest.mark.parametrize(("events", "left"), [(DiskEvents(), b"one"), (AllKept(), b"onetwo")])
def test_a_crash_loses_what_was_not_synced_in_memory(events: DiskEvents, left: bytes) -> None:
    disk = MemoryDisk()
    disk.events = events
    folder = disk.open_folder("leader")
    for name in ("1", "2"):
        file = folder.create(b"a", name)
        file.write([b"one"], 0)
        file.sync()
    file.write([b"two"], 3)
    folder.remove(b"a", "1")
    disk.crash()
    names = ["1", "2"] if left == b"onetwo" else ["2"]
    assert sorted(folder.files()[b"a"]) == names and folder.read(b"a", "2", 0, 9) == left
    folder.remove(b"a", "2")
    folder.create(b"a", "3")
    disk.crash()
    assert ("2" in folder.files()[b"a"]) == (left == b"onetwo"), "it may be unlinked later than a file is created"
    folder.remove(b"a", "2")
    folder.create(b"a", "4")
    folder.create(b"a", "5")
    disk.crash()
    assert "2" not in folder.files()[b"a"], "its name is gone for good with a later file's"


def test_bytes_of_a_failed_sync_are_not_durable_in_memory() -> None:
    disk = MemoryDisk()
    folder = disk.open_folder("leader")
    file = folder.create(b"a", "1")
    file.write([b"one"], 0)
    disk.fail_next_syncs(1)
    with pytest.raises(MemoryDiskError):
        file.sync()
    with pytest.raises(MemoryDiskError):
        file.sync(anew=True)
    file.sync()
    disk.crash()
    assert folder.files() == {b"a": {"1": 0}}


def test_a_full_disk_refuses_values_in_memory() -> None:
    disk = MemoryDisk()
    file = disk.open_folder("leader").create(b"a", "1")
    disk.is_full = True
    with pytest.raises(MemoryDiskError, match="No space left"):
        file.write([b"one"], 0)
    disk.is_full = False
    file.write([b"two"], 0)
    assert disk.open_folder("leader").read(b"a", "1", 0, 9) == b"two"
