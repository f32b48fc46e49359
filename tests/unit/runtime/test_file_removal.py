"""Value files are unlinked beside the event loop: what the store says meanwhile, and what a crash leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kshare_runtime.large_values.removal import Removals, ThreadRemovals
from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.ports import AppendedWrite
from kshare_runtime.rocks_store import RocksStore
from support.runtime.removals import HeldRemovals, RemovalsAtOnce

VALUE = b"v" * 100


def opened(path: Path, removals: Removals) -> RocksValueFileStore:
    """Each value has a file of its own."""
    return RocksValueFileStore(
        RocksStore(path), family="log", prefix_bytes=1, from_bytes=1, file_bytes=1, removals=removals
    )


def append(store: RocksValueFileStore, prefix: str, *numbers: int) -> None:
    for number in numbers:
        store.write([AppendedWrite("log", b"%s%03d" % (prefix.encode(), number), VALUE)])


def on_disk(path: Path) -> list[str]:
    """The prefix and first number of each file, in the order in which they were created."""
    found = sorted(file for file in (path / FOLDER).rglob("*") if file.is_file())
    return [bytes.fromhex(file.parent.name + file.name.partition("-")[2]).decode() for file in found]


def test_a_removed_file_is_gone_for_the_store_and_unlinked_later(tmp_path: Path) -> None:
    removals = HeldRemovals()
    store = opened(tmp_path / "store", removals)
    append(store, "a", *range(100))
    append(store, "b", 0)
    assert store.get("log", b"a000") == VALUE  # its file is open for reading
    store.delete_range("log", b"a", b"b")
    assert len(on_disk(tmp_path / "store")) == 101, "nothing is unlinked by the caller"
    assert store.file_bytes == len(VALUE) and [key for key, _ in store.scan("log", b"")] == [b"b000"]
    store.checkpoint(tmp_path / "copy")
    assert on_disk(tmp_path / "copy") == ["b000"]
    removals.run(50)
    assert len(on_disk(tmp_path / "store")) == 51
    removals.run()
    assert on_disk(tmp_path / "store") == ["b000"]
    assert [folder.name for folder in (tmp_path / "store" / FOLDER).iterdir()] == [b"b".hex()]
    store.close()


def test_a_prefix_takes_values_again_while_its_files_are_removed(tmp_path: Path) -> None:
    """As a partition that comes back to this leader."""
    removals = HeldRemovals()
    store = opened(tmp_path, removals)
    append(store, "a", 0, 1)
    store.delete_range("log", b"a", b"b")
    append(store, "a", 0)
    assert on_disk(tmp_path) == ["a000", "a001", "a000"]
    removals.run()
    assert on_disk(tmp_path) == ["a000"] and store.get("log", b"a000") == VALUE
    store.delete_range("log", b"a", b"b")
    removals.run(1)
    append(store, "a", 7)
    removals.run()
    assert on_disk(tmp_path) == ["a007"] and store.get("log", b"a007") == VALUE
    store.close()


@pytest.mark.parametrize(
    ("start", "end", "again", "left"),
    [
        (b"a", b"b", [], ["b000"]),
        (b"a", b"b", [0, 1], ["a000", "a001", "b000"]),
        (b"a000", b"a003", [5], ["a003", "a004", "b000", "a005"]),
        (b"a002", b"b", [2, 3], ["a000", "a001", "a002", "a003"]),
    ],
)
def test_files_that_a_crash_left_are_removed_at_the_next_open(
    tmp_path: Path, start: bytes, end: bytes, again: list[int], left: list[str]
) -> None:
    store = opened(tmp_path, HeldRemovals())
    append(store, "a", *range(5))
    append(store, "b", 0)
    store.delete_range("log", start, end)
    append(store, "a", *again)
    expected = dict(store.scan("log", b""))
    store.close()
    assert len(on_disk(tmp_path)) == 6 + len(again)
    store = opened(tmp_path, RemovalsAtOnce())
    assert dict(store.scan("log", b"")) == expected
    append(store, "c", 0)
    assert on_disk(tmp_path)[-1] == "c000", "it has a higher number than all files that were left"
    found = on_disk(tmp_path)[:-1]
    assert set(found) >= set(left) and len(found) < 6 + len(again)
    store.delete_range("log", b"a", b"b")
    assert set(on_disk(tmp_path)) <= {"b000", "c000"}, "the others go with the rows after them"
    store.close()


def test_a_file_that_cannot_be_unlinked_is_tried_again_with_the_next_one(tmp_path: Path) -> None:
    store = opened(tmp_path, RemovalsAtOnce())
    append(store, "a", 0, 1, 2)
    (path,) = (tmp_path / FOLDER).rglob("0000000001-*")
    path.unlink()
    path.mkdir()
    store.delete_range("log", b"a000", b"a001")
    assert path.exists() and store.file_bytes < 3 * len(VALUE) + path.stat().st_size
    path.rmdir()
    path.write_bytes(VALUE)
    store.delete_range("log", b"a001", b"a002")
    assert on_disk(tmp_path) == ["a002"]
    store.close()


def test_a_thread_removes_in_order_and_ends_with_the_removal_that_runs() -> None:
    removals = ThreadRemovals()
    removed: list[int] = []
    for turn in range(3):
        is_done = threading.Event()
        for number in range(10):
            removals.begin(lambda number=10 * turn + number: removed.append(number))  # type: ignore[misc]
        removals.begin(is_done.set)
        assert is_done.wait(30)
    assert removed == list(range(30))
    has_begun, may_end = threading.Event(), threading.Event()

    def remove() -> None:
        has_begun.set()
        assert may_end.wait(30)
        removed.append(30)

    removals.begin(remove)
    assert has_begun.wait(30)
    removals.begin(lambda: removed.append(31))
    closing = threading.Thread(target=removals.close)
    closing.start()
    while removals._waiting:
        pass
    assert closing.is_alive(), "it waits for the removal that runs"
    may_end.set()
    closing.join(30)
    assert removed == list(range(31))
