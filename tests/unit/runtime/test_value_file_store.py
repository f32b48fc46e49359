"""A store with value files: what lies where, what a crash at each moment leaves, and when files are removed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import Ended
from kshare_runtime.large_values.files import Pointer
from kshare_runtime.large_values.folder import DiskFile, DiskFolder
from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.ports import AppendedWrite, Write
from kshare_runtime.rocks_store import RocksStore
from support.runtime.damaged_files import files_no_larger_than
from support.runtime.removals import RemovalsAtOnce

FROM_BYTES = 100
FILE_BYTES = 1_000
LARGE = b"v" * FROM_BYTES


class HeldSync:
    """A sync that ends when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended: Ended | None = None

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None
        self._ended = ended

    def close(self) -> None:
        self._ended = None

    @property
    def is_under_way(self) -> bool:
        return self._ended is not None

    def end(self, *, is_durable: bool = True) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None
        ended(is_durable)


def opened(path: Path, sync: Callable[[asyncio.AbstractEventLoop], HeldSync] | None = None) -> RocksValueFileStore:
    more = {} if sync is None else {"new_sync": sync}
    return RocksValueFileStore(
        RocksStore(path),
        family="log",
        prefix_bytes=1,
        from_bytes=FROM_BYTES,
        file_bytes=FILE_BYTES,
        removals=RemovalsAtOnce(),
        **more,
    )


def appended(prefix: str, *numbers: int, value: bytes = LARGE) -> list[Write]:
    return [AppendedWrite("log", b"%s%03d" % (prefix.encode(), number), value) for number in numbers]


def files(path: Path) -> dict[str, list[int]]:
    """The first numbers of the files of each prefix."""
    return {
        bytes.fromhex(folder.name).decode(): [
            int(bytes.fromhex(file.name.partition("-")[2])) for file in sorted(folder.iterdir())
        ]
        for folder in sorted((path / FOLDER).iterdir())
    }


def file_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / FOLDER).rglob("*") if file.is_file())


def numbers(store: RocksValueFileStore, prefix: str = "") -> list[int]:
    end = chr(ord(prefix) + 1).encode() if prefix else None
    return [int(key[1:]) for key, _ in store.scan("log", prefix.encode(), end)]


def rows(path: Path) -> dict[bytes, bytes]:
    """What RocksDB itself has."""
    store = RocksStore(path)
    found = dict(store.scan("log", b""))
    store.close()
    return found


def test_large_appended_values_lie_in_files_and_others_in_rows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(
        [
            *appended("a", 1, 2),
            *appended("b", 1, value=b"small"),
            Write("log", b"c001", LARGE),
            Write("other", b"d001", LARGE),
        ]
    )
    store.write([*appended("a", 3, value=b"small")])
    expected = {b"a001": LARGE, b"a002": LARGE, b"a003": b"small", b"b001": b"small", b"c001": LARGE}
    assert dict(store.scan("log", b"")) == expected
    assert dict(store.scan("log", b"", reverse=True)) == expected
    assert [store.get("log", key) for key in expected] == list(expected.values())
    assert store.get("other", b"d001") == LARGE and store.get("log", b"a004") is None
    store.close()
    assert files(tmp_path) == {"a": [1]}
    found = rows(tmp_path)
    assert [len(found[key]) for key in (b"a001", b"a002")] == [len(Pointer(1, 0, 0, 0).encoded())] * 2
    assert found[b"b001"] == b"small" and found[b"c001"] == LARGE
    store = opened(tmp_path)
    assert dict(store.scan("log", b"")) == expected
    store.close()


def test_a_value_that_is_not_after_all_others_is_a_row(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(appended("a", 5))
    store.write(appended("a", 4))
    store.write(appended("a", 5, value=LARGE + b"again"))
    assert files(tmp_path) == {"a": [5]} and numbers(store) == [4, 5]
    assert store.get("log", b"a005") == LARGE + b"again"
    store.close()


def test_a_value_that_looks_like_a_place_in_a_file_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    value = Pointer(1, 0, 0, 0).encoded()
    for kind in (Write, AppendedWrite):
        with pytest.raises(ValueError, match="a value of log cannot be stored"):
            store.write([*appended("a", 1), kind("log", b"a002", value)])
    store.write([Write("other", b"k", value)])
    assert store.get("other", b"k") == value and not numbers(store)
    store.close()


def test_a_file_ends_at_its_size_and_with_the_opening(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(25):
        store.write(appended("a", number))
    assert files(tmp_path) == {"a": [0, 10, 20]}
    store.close()
    store = opened(tmp_path)
    store.write(appended("a", 25))
    assert files(tmp_path) == {"a": [0, 10, 20, 25]} and numbers(store) == list(range(26))
    store.close()


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        (b"a000", b"a009", {"a": [0, 10, 20], "b": [7]}),
        (b"a000", b"a010", {"a": [10, 20], "b": [7]}),
        (b"a000", b"a019", {"a": [10, 20], "b": [7]}),
        (b"a000", b"a024", {"a": [20], "b": [7]}),
        (b"a000", b"a025", {"b": [7]}),
        (b"a010", b"b", {"a": [0], "b": [7]}),
        (b"a015", b"b", {"a": [0, 10], "b": [7]}),
        (b"a", b"b", {"b": [7]}),
        (b"a", b"c", {}),
        (b"a020", b"b008", {"a": [0, 10]}),
    ],
)
@pytest.mark.parametrize("is_opened_again", [False, True])
def test_files_go_with_their_last_row(
    tmp_path: Path, start: bytes, end: bytes, left: dict[str, list[int]], is_opened_again: bool
) -> None:
    store = opened(tmp_path)
    for number in range(25):
        store.write(appended("a", number))
    store.write(appended("b", 7))
    if is_opened_again:  # as after a crash between the two steps
        below = store._store
        below.delete_range("log", start, end)
        store.close()
        store = opened(tmp_path)
    else:
        store.delete_range("log", start, end)
    assert files(tmp_path) == left
    expected = [key for key in [b"a%03d" % number for number in range(25)] + [b"b007"] if not start <= key < end]
    assert list(store.scan("log", b"")) == [(key, LARGE) for key in expected]
    store.close()


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_the_last_file_goes_with_its_last_row_also_where_only_small_values_follow(
    tmp_path: Path, is_opened_again: bool
) -> None:
    store = opened(tmp_path)
    for number in range(15):
        store.write(appended("a", number))
    for number in range(15, 20):
        store.write(appended("a", number, value=b"small"))
    last = 14
    if is_opened_again:  # where its last value lies is not known any more, but no later than the last row
        store.close()
        store = opened(tmp_path)
        last = 19
    for number in range(20, 25):
        store.write(appended("a", number, value=b"small"))
    store.delete_range("log", b"a", b"a%03d" % last)
    assert files(tmp_path) == {"a": [10]} and numbers(store) == list(range(last, 25))
    store.delete_range("log", b"a", b"a%03d" % (last + 1))
    assert files(tmp_path) == {} and numbers(store) == list(range(last + 1, 25))
    store.write(appended("a", 25))
    assert files(tmp_path) == {"a": [25]} and store.get("log", b"a025") == LARGE
    store.close()


def test_a_last_file_whose_end_was_cut_goes_with_the_last_row_that_was_left(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        store.write(appended("a", number))
    store.delete_range("log", b"a005", b"b")
    for number in range(5, 20):
        store.write(appended("a", number, value=b"small"))
    store.delete_range("log", b"a", b"a004")
    assert files(tmp_path) == {"a": [0]} and store.get("log", b"a004") == LARGE
    store.delete_range("log", b"a", b"a005")
    assert files(tmp_path) == {} and numbers(store) == list(range(5, 20))
    store.close()


def test_a_file_that_grows_after_a_removal_is_not_removed_before_its_new_end(tmp_path: Path) -> None:
    """Also where its last values were begun only, and lie in no row yet."""

    async def test() -> None:
        store = opened(tmp_path, HeldSync)
        store.write(appended("a", 1))
        store.delete_range("log", b"a", b"a001")
        results: list[bool] = []
        store.begin_write(appended("a", 2), lambda failure: results.append(failure is None))
        store.begin_write(appended("a", 3, value=b"small"), lambda failure: results.append(failure is None))
        store.delete_range("log", b"a", b"a002")
        assert numbers(store) == [2, 3] and store.get("log", b"a002") == LARGE
        store.delete_range("log", b"a", b"a003")
        assert files(tmp_path) == {} and numbers(store) == [3]
        store.close()
        assert results == [True, True]

    asyncio.run(test())


def test_after_a_cut_end_the_same_keys_are_appended_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(15):
        store.write(appended("a", number))
    store.delete_range("log", b"a005", b"b")
    for number in range(5, 15):
        store.write(appended("a", number, value=b"w" * FROM_BYTES))
    assert files(tmp_path) == {"a": [0, 5]}
    assert [value[:1] for _, value in store.scan("log", b"")] == [b"v"] * 5 + [b"w"] * 10
    store.close()


def test_a_row_is_written_when_its_value_is_durable(tmp_path: Path) -> None:
    """A copy of the files at each moment has all or nothing of each write, in the order of the writes."""

    async def test() -> None:
        syncs: list[HeldSync] = []

        def new_sync(loop: asyncio.AbstractEventLoop) -> HeldSync:
            syncs.append(HeldSync(loop))
            return syncs[-1]

        store = opened(tmp_path / "store", new_sync)
        store.write(appended("a", 0))
        results: list[tuple[int, bool]] = []
        for number in (1, 2):
            writes = [*appended("a", number), Write("other", b"%d" % number, b"")]
            store.begin_write(writes, lambda failure, number=number: results.append((number, failure is None)))  # type: ignore[misc]
        store.begin_write([Write("other", b"3", b"")], lambda failure: results.append((3, failure is None)))
        shutil.copytree(tmp_path / "store", tmp_path / "before")
        syncs[0].end()  # of the first
        assert syncs[0].is_under_way, "the second has its sync when the first one is begun"
        shutil.copytree(tmp_path / "store", tmp_path / "between")
        syncs[0].end()
        for _ in range(1_000):
            await asyncio.sleep(0.001)
            if len(results) == 3:
                break
        assert results == [(1, True), (2, True), (3, True)]
        store.close()

    asyncio.run(test())
    found = []
    for name in ("before", "between", "store"):
        store = opened(tmp_path / name)
        found.append((numbers(store), [key for key, _ in store.scan("other", b"")]))
        assert all(value == LARGE for _, value in store.scan("log", b""))
        store.write(appended("a", 9))
        assert numbers(store)[-1] == 9
        store.close()
    assert found == [([0], []), ([0, 1], [b"1"]), ([0, 1, 2], [b"1", b"2", b"3"])]


@pytest.mark.parametrize("way", ["get", "scan", "finish", "write", "delete", "checkpoint", "close"])
def test_what_meets_a_begun_write_makes_it_durable_first(tmp_path: Path, way: str) -> None:
    async def test() -> None:
        store = opened(tmp_path / "store", HeldSync)
        results: list[bool] = []
        store.begin_write([*appended("a", 1), Write("other", b"k", b"v")], lambda failure: results.append(not failure))
        store.begin_write(appended("a", 2), lambda failure: results.append(not failure))
        assert store.get("log", b"a003") is None and not list(store.scan("log", b"b")) and not results
        if way == "get":
            assert store.get("other", b"k") == b"v"
        elif way == "scan":
            assert [key for key, _ in store.scan("log", b"a002", b"b")] == [b"a002"]
        elif way == "finish":
            store.finish_writes()
            assert results == [True, True]
        elif way == "write":
            store.write(appended("a", 3))
        elif way == "delete":
            store.delete_range("log", b"a001", b"a002")
        elif way == "checkpoint":
            store.checkpoint(tmp_path / "copy")
        store.close()
        assert results == [True, True]

    asyncio.run(test())
    expected = {"write": [1, 2, 3], "delete": [2]}.get(way, [1, 2])
    for name in ("store", "copy") if way == "checkpoint" else ("store",):
        store = opened(tmp_path / name)
        assert numbers(store) == expected
        assert all(value == LARGE for _, value in store.scan("log", b""))
        store.close()


def test_a_sync_that_fails_fails_all_writes_from_there_on_until_it_is_mended(tmp_path: Path) -> None:
    """A batch behind it would be at offsets that nothing leads to."""

    async def test() -> None:
        syncs: list[HeldSync] = []

        def new_sync(loop: asyncio.AbstractEventLoop) -> HeldSync:
            syncs.append(HeldSync(loop))
            return syncs[-1]

        store = opened(tmp_path, new_sync)
        results: list[tuple[str, bool]] = []

        def begin(name: str, writes: list[Write]) -> None:
            store.begin_write(writes, lambda failure: results.append((name, failure is None)))

        begin("before", appended("b", 1))
        begin("failed", appended("a", 1))
        begin("row behind it", appended("a", 2, value=b"small"))
        file = store._staged[1].files[0].opened
        assert isinstance(file, DiskFile)
        os.dup2(os.open("/dev/full", os.O_RDONLY), file.second_descriptor)  # it cannot be synced
        syncs[0].end()
        begin("file behind it", appended("b", 2))
        syncs[0].end(is_durable=False)
        assert store.write_failure is not None
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            begin("", appended("b", 3))
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            store.delete_range("log", b"a", b"b")
        store.finish_writes()
        assert results == [("before", True), ("failed", False), ("row behind it", False), ("file behind it", False)]
        assert store.mend() and store.write_failure is None
        begin("again", appended("a", 1))
        store.finish_writes()
        assert results[-1] == ("again", True)
        assert [key for key, _ in store.scan("log", b"")] == [b"a001", b"b001"]
        store.close()

    asyncio.run(test())


def test_a_full_disk_fails_all_writes_until_it_is_mended(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(appended("a", 1))
    with files_no_larger_than(150):
        with pytest.raises(StorageFailure, match="cannot write"):
            store.write(appended("a", 2))
        assert not store.mend() and store.write_failure is not None, "the disk is as full as it was"
    with pytest.raises(StorageFailure, match="an earlier write failed"):
        store.write([Write("other", b"k", b"v")])
    assert store.mend()
    store.write(appended("a", 3))
    assert numbers(store) == [1, 3] and all(value == LARGE for _, value in store.scan("log", b""))
    store.close()


def test_a_file_whose_name_cannot_be_made_durable_is_closed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(directory))

    folder = DiskFolder(tmp_path / "values")
    folder.create(b"a", "0").close()
    with monkeypatch.context() as patch:
        patch.setattr("kshare_runtime.large_values.folder._sync_directory", fails)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(1, 20):
            with pytest.raises(OSError, match="Input/output error"):
                folder.create(b"a", str(number))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(folder.files()[b"a"]) == ["0"]
    folder.close()


def test_a_folder_whose_name_could_not_be_made_durable_is_synced_with_its_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    failures = [OSError(errno.EIO, "Input/output error")] * 2

    def sync(directory: Path) -> None:
        if directory == tmp_path / "values" and failures:
            raise failures.pop()
        synced.append(directory)

    folder = DiskFolder(tmp_path / "values")
    monkeypatch.setattr("kshare_runtime.large_values.folder._sync_directory", sync)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            folder.create(b"a", "0")
    assert synced == [tmp_path]
    for name in ("0", "1"):
        folder.create(b"a", name).close()
    of_prefix = tmp_path / "values" / b"a".hex()
    assert synced == [tmp_path, tmp_path / "values", of_prefix, of_prefix]
    folder.close()


def test_a_store_that_refuses_writes_takes_no_values_until_it_is_mended(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([Write("other", b"k", bytes(100_000)), *appended("a", 1)])
    with files_no_larger_than(50_000):
        with pytest.raises(StorageFailure, match="cannot write"):
            store.write(appended("a", 2))
        size_bytes = file_bytes(tmp_path)
        for number in (3, 4):
            with pytest.raises(StorageFailure, match="an earlier write failed"):
                store.write(appended("a", number))
        assert file_bytes(tmp_path) == size_bytes and not store.mend()
    assert store.mend()
    store.write(appended("a", 2, value=LARGE + b"again"))
    assert dict(store.scan("log", b"")) == {b"a001": LARGE, b"a002": LARGE + b"again"}
    store.close()


@pytest.mark.parametrize(
    ("damage", "why"),
    [("missing", "is missing"), ("shorter", "ends before byte 100"), ("other", "is damaged between byte 0 and 100")],
)
def test_a_lost_or_damaged_file_is_a_failed_read(tmp_path: Path, damage: str, why: str) -> None:
    store = opened(tmp_path)
    store.write(appended("a", 1))
    store.write(appended("b", 1))
    store.close()
    (path,) = (tmp_path / FOLDER / b"a".hex()).iterdir()
    if damage == "missing":
        path.unlink()
    elif damage == "shorter":
        os.truncate(path, FROM_BYTES - 1)
    else:
        path.write_bytes(LARGE[:-1] + b"w")
    store = opened(tmp_path)
    with pytest.raises(StorageFailure, match=why):
        store.get("log", b"a001")
    assert store.get("log", b"b001") == LARGE
    store.close()


PAGE_BYTES = 4096
FIRST, SECOND = (bytes([number]) * 3 * PAGE_BYTES for number in (1, 2))


def without_the_middle_page(data: bytes) -> bytes:
    return FIRST[:PAGE_BYTES] + bytes(PAGE_BYTES) + data[2 * PAGE_BYTES :]


def second_over_first(data: bytes) -> bytes:
    """The second value was written at the first one's place, and a length was reserved for both."""
    return SECOND + bytes(len(SECOND))


def swapped(data: bytes) -> bytes:
    return SECOND + FIRST


@pytest.mark.parametrize(
    ("damage", "lost"), [(without_the_middle_page, [1]), (second_over_first, [1, 2]), (swapped, [1, 2])]
)
def test_a_hole_in_a_file_and_a_misdirected_write_are_failed_reads(
    tmp_path: Path, damage: Callable[[bytes], bytes], lost: list[int]
) -> None:
    store = RocksValueFileStore(RocksStore(tmp_path), family="log", prefix_bytes=1, from_bytes=1)
    values = {1: FIRST, 2: SECOND}
    for number, value in values.items():
        store.write(appended("a", number, value=value))
    store.close()
    (path,) = (tmp_path / FOLDER / b"a".hex()).iterdir()
    path.write_bytes(damage(path.read_bytes()))
    store = RocksValueFileStore(RocksStore(tmp_path), family="log", prefix_bytes=1, from_bytes=1)
    for number, value in values.items():
        if number in lost:
            with pytest.raises(StorageFailure, match="is damaged between byte"):
                store.get("log", b"a%03d" % number)
        else:
            assert store.get("log", b"a%03d" % number) == value
    store.close()


def test_a_copy_is_not_written_to_by_the_store_that_it_is_of(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    store.write(appended("a", 1))
    store.checkpoint(tmp_path / "copy")
    store.write(appended("a", 2))
    store.delete_range("log", b"a", b"b")
    copy = opened(tmp_path / "copy")
    copy.write(appended("a", 2, value=b"c" * FROM_BYTES))
    assert [value[:1] for _, value in copy.scan("log", b"")] == [b"v", b"c"]
    copy.close()
    store.close()
