"""A store that failed a write is reopened when its disk accepts writes again: nothing is lost or undone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_files import without_writes_after
from kshare_runtime.store_mending import StoreMending
from support.runtime.damaged_files import files_no_larger_than, newest_log
from support.simulation.loop import VirtualLoop

LIMIT_BYTES = 64 * 1024


def keys(store: RocksStore, family: str = "log") -> list[bytes]:
    return [key for key, _ in store.scan(family, b"")]


def fail_a_write(store: RocksStore, *writes: Write) -> None:
    """A write that is larger than what there is room for."""
    with files_no_larger_than(LIMIT_BYTES), pytest.raises(StorageFailure, match="cannot write the store"):
        store.write([*writes, Write("log", b"failed", b"x" * 2 * LIMIT_BYTES)])
    assert store.write_failure is not None


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    opened = RocksStore(tmp_path / "a")
    opened.write([Write("log", b"1", b"x"), Write("other", b"1", b"x")])
    opened.drop_family("other")
    opened.write([Write("log", b"2", b"x"), Write("more", b"1", b"x"), Write("third", b"1", b"x")])
    return opened


def test_it_takes_writes_again_and_what_failed_stays_failed(store: RocksStore) -> None:
    fail_a_write(store)
    assert store.mend()
    assert store.write_failure is None
    store.write([Write("log", b"3", b"x")])
    assert keys(store) == [b"1", b"2", b"3"]
    figures = store.figures()
    assert figures is not None and (figures.refuses_writes, figures.times_mended) == (0, 1)
    store.close()
    again = RocksStore(store.path)
    assert keys(again) == [b"1", b"2", b"3"]
    again.close()


def test_while_the_disk_is_full_it_can_be_read(store: RocksStore) -> None:
    fail_a_write(store)
    with files_no_larger_than(LIMIT_BYTES):
        assert not store.mend()
        assert keys(store) == [b"1", b"2"]
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            store.write([Write("log", b"3", b"x")])
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            store.delete_range("log", b"1", b"2")
    figures = store.figures()
    assert figures is not None and (figures.refuses_writes, figures.times_mended) == (1, 0)
    assert sorted(path.name for path in store.path.glob("probe*")) == []
    store.close()


def test_a_family_that_could_not_be_made_is_made_later(store: RocksStore) -> None:
    with files_no_larger_than(1), pytest.raises(StorageFailure):
        store.write([Write("new", b"1", b"x")])
    with pytest.raises(StorageFailure):
        store.write([Write("log", b"3", b"x")])
    assert store.mend()
    store.write([Write("new", b"1", b"x"), Write("log", b"3", b"x")])
    assert keys(store, "new") == [b"1"] and keys(store) == [b"1", b"2", b"3"]
    store.close()


def test_it_can_fail_and_be_mended_many_times(store: RocksStore) -> None:
    expected = [b"1", b"2"]
    for number in range(5):
        fail_a_write(store, Write("log", b"with-it", b"x"))
        assert store.mend()
        store.write([Write("log", b"after %d" % number, b"x")])
        expected.append(b"after %d" % number)
    assert keys(store) == sorted(expected)
    store.close()


@pytest.mark.parametrize("kept", [0, 1, 7, 19, 20])
def test_a_log_is_cut_off_behind_the_newest_confirmed_write(tmp_path: Path, kept: int) -> None:
    """As where a write reached the log as a whole, and its fsync failed: the next open must not find it."""
    running = RocksStore(tmp_path / "running")
    running.write([Write("log", b"first", b"")])
    first = 1
    for index in range(20):
        running.write([Write("log", b"%04d" % index, b"v" * index * 3_000)])
    shutil.copytree(tmp_path / "running", tmp_path / "left")
    running.close()
    newest_log(tmp_path / "left")
    (tmp_path / "left" / "confirmed").unlink()
    without_writes_after(tmp_path / "left", first + kept)
    left = RocksStore(tmp_path / "left")
    assert keys(left) == [*(b"%04d" % index for index in range(kept)), b"first"]
    left.close()


def test_a_failed_write_is_gone_after_a_stop(store: RocksStore, tmp_path: Path) -> None:
    fail_a_write(store)
    store.close()
    again = RocksStore(tmp_path / "a")
    assert keys(again) == [b"1", b"2"]
    again.close()


def test_a_store_that_was_stopped_on_a_full_disk_opens_again(store: RocksStore, tmp_path: Path) -> None:
    """Its flushes fail then, and each leaves an empty log."""
    with files_no_larger_than(1):
        with pytest.raises(StorageFailure, match="cannot write the store"):
            store.write([Write("log", b"failed", b"x")])
        store.close()
    assert len([log for log in store.path.glob("*.log") if not log.stat().st_size]) > 1
    again = RocksStore(tmp_path / "a")
    assert keys(again) == [b"1", b"2"] and keys(again, "more") == [b"1"]
    again.close()


def test_scans_that_are_not_finished_end(store: RocksStore) -> None:
    scan = store.scan("log", b"")
    assert next(scan) == (b"1", b"x")
    fail_a_write(store)
    assert next(scan) == (b"2", b"x")
    again = store.scan("log", b"")
    assert store.mend()
    with pytest.raises(StorageFailure, match="closed while it was scanned"):
        next(again)
    store.close()


def test_a_store_that_cannot_be_opened_anew_is_tried_again(store: RocksStore) -> None:
    fail_a_write(store)
    current = store.path / "CURRENT"
    hidden = current.rename(store.path.parent / "hidden")
    with pytest.raises(StorageFailure, match="CURRENT is missing"):
        store.mend()
    with pytest.raises(StorageFailure, match="could not be reopened"):
        store.get("log", b"1")
    store.sync_confirmed()
    figures = store.figures()
    assert figures is not None and figures.refuses_writes == 1
    hidden.rename(current)
    assert store.mend()
    store.write([Write("log", b"3", b"x")])
    assert keys(store) == [b"1", b"2", b"3"]
    store.close()


def test_a_closed_store_stays_closed(store: RocksStore) -> None:
    fail_a_write(store)
    store.close()
    assert not store.mend()
    with pytest.raises(StorageFailure, match="is closed"):
        store.get("log", b"1")


def test_a_node_looks_every_second_and_says_what_it_sees() -> None:
    async def scene() -> None:
        disk = MemoryDisk(needs_mending=True)
        store = disk.open_store("leader")
        said: list[str] = []
        mended: list[float] = []
        loop = asyncio.get_running_loop()
        mending = StoreMending(store, report=said.append, on_mended=lambda: mended.append(loop.time()))
        mending.start()
        disk.fail_next_writes(3)
        with pytest.raises(StorageFailure):
            store.write([Write("log", b"1", b"x")])
        assert mending.problems() == [
            "the store refuses writes because a write failed: cannot write the store leader: No space left on device"
        ]
        await asyncio.sleep(2.5)
        assert not mended and len(said) == 1 and "refuses writes" in said[0]
        await asyncio.sleep(1)
        assert mended == [3.0] and said[1:] == ["the store was reopened and accepts writes again, after 2.0 s"]
        assert mending.problems() == []
        store.write([Write("log", b"1", b"x")])
        await mending.stop()

    loop = VirtualLoop(time_limit=60.0)
    try:
        loop.run(scene())
    finally:
        loop.close()
