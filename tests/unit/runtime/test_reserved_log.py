"""Space that is reserved behind a log's last write: what a crash leaves of it, and what it must not hide."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.confirmed_writes import FILE_NAME
from kshare_runtime.ports import Write
from kshare_runtime.reserved_log import LARGE_WRITE_BYTES, RESERVED_BYTES, ReservedLog
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_files import BLOCK_BYTES, ZEROS_BYTES, examine, read_log
from support.runtime.damaged_files import (
    content_of_files,
    files_no_larger_than,
    flipped,
    newest_log,
    note_up_to,
    written_bytes,
)

COUNT = 20
SMALL, LARGE = 100, 3 * BLOCK_BYTES
"""Bytes of a value: some writes in a block, or a write in four blocks."""


def killed(directory: Path, sizes: list[int]) -> tuple[Path, list[int]]:
    """What a kill -9 leaves, and where in the log each write begins; one write of each size."""
    store = RocksStore(directory / "running")
    begins: list[int] = []
    for index, size in enumerate(sizes):
        if index:
            begins.append(written_bytes(newest_log(directory / "running")))
        store.write([Write("log", b"%04d" % index, bytes([1 + index]) * size)])
    path = shutil.copytree(directory / "running", directory / "left")
    store.close()
    return path, [0, *begins]


def keys(path: Path) -> list[int]:
    store = RocksStore(path)
    found = [int(key) for key, _ in store.scan("log", b"")]
    store.close()
    return found


def test_length_is_there_before_it_is_written_and_gone_when_the_store_is_closed(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    store.write([Write("log", b"0", b"v")])
    log = newest_log(tmp_path / "a")
    store.write([Write("log", b"1", b"v")])
    sizes = {log.stat().st_size}
    while len(sizes) < 3:
        store.write([Write("log", b"2", b"v" * 60_000)])
        sizes.add(log.stat().st_size)
    assert all(size > RESERVED_BYTES for size in sizes), "it grows by what is reserved, not by what is written"
    assert log.stat().st_size - written_bytes(log) <= RESERVED_BYTES + 64 * 1024
    store.close()
    assert all(left.stat().st_size == written_bytes(left) for left in (tmp_path / "a").glob("*.log"))
    assert keys(tmp_path / "a") == [0, 1, 2]


@pytest.mark.parametrize("sizes", [[SMALL] * COUNT, [SMALL, LARGE] * 3], ids=["small", "large"])
def test_what_a_kill_leaves_is_whole(tmp_path: Path, sizes: list[int]) -> None:
    path, _ = killed(tmp_path, sizes)
    assert newest_log(path).stat().st_size > RESERVED_BYTES
    assert keys(path) == list(range(len(sizes)))
    assert keys(path) == list(range(len(sizes))), "and again, when RocksDB has opened it"


def torn(data: bytes, begin: int, end: int, lost: slice) -> bytes:
    """The last write without a part of it, which never came to the disk."""
    positions = range(begin, end)[lost]
    changed = bytearray(data)
    changed[positions.start : positions.stop] = bytes(len(positions))
    return bytes(changed)


@pytest.mark.parametrize("last", [SMALL, LARGE])
@pytest.mark.parametrize(
    "lost",
    [slice(0, None), slice(-1, None), slice(-60, None), slice(0, 7), slice(0, 60), slice(7, None), slice(20, 40)],
    ids=["all", "its last byte", "its end", "its head", "its begin", "all but its head", "its middle"],
)
def test_a_write_that_a_power_cut_tore_is_dropped_and_no_other(tmp_path: Path, last: int, lost: slice) -> None:
    path, begins = killed(tmp_path, [*[SMALL] * (COUNT - 1), last])
    log = newest_log(path)
    data, end = log.read_bytes(), written_bytes(log)
    log.write_bytes(torn(data, begins[-1], end, lost))
    before = content_of_files(path)
    with pytest.raises(StorageFailure, match=f"confirmed up to number {COUNT}, but the files end at {COUNT - 1}"):
        RocksStore(path)
    assert content_of_files(path) == before, "a refused store is left as it was"
    note_up_to(path, COUNT - 1)
    assert keys(path) == list(range(COUNT - 1))
    assert keys(path) == list(range(COUNT - 1))


@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_of_a_large_write_any_block_may_be_missing(tmp_path: Path, block: int) -> None:
    """A disk may have taken the later ones first."""
    path, begins = killed(tmp_path, [SMALL, LARGE])
    log = newest_log(path)
    data, end = log.read_bytes(), written_bytes(log)
    begin = max(begins[-1], block * BLOCK_BYTES)
    log.write_bytes(torn(data, begin, min(end, (block + 1) * BLOCK_BYTES), slice(None)))
    note_up_to(path, 1)
    assert keys(path) == [0]


@pytest.mark.parametrize("has_note", [True, False])
def test_a_damaged_write_that_others_follow_is_no_torn_one(tmp_path: Path, has_note: bool) -> None:
    path, begins = killed(tmp_path, [SMALL, LARGE, SMALL, SMALL, LARGE, SMALL])
    if not has_note:
        (path / FILE_NAME).unlink()
    log = newest_log(path)
    data = log.read_bytes()
    for begin, following in pairwise(begins):
        places = {*range(begin, begin + 8), begin + 50, following - 1}
        if following // BLOCK_BYTES > begin // BLOCK_BYTES:
            places.add(following // BLOCK_BYTES * BLOCK_BYTES)
        for place in sorted(places):
            log.write_bytes(flipped(data, place))
            with pytest.raises(StorageFailure, match="Corruption"):
                RocksStore(path)


@pytest.mark.parametrize("place", [0, 3, 6, 7, 1000, BLOCK_BYTES, -1])
def test_what_lies_in_the_zeros_is_no_write(tmp_path: Path, place: int) -> None:
    path, _ = killed(tmp_path, [SMALL] * COUNT)
    log = newest_log(path)
    data = log.read_bytes()
    log.write_bytes(flipped(data, written_bytes(log) + place if place >= 0 else len(data) - 1))
    assert keys(path) == list(range(COUNT))


def test_a_reader_says_what_to_do_about_a_torn_write(tmp_path: Path) -> None:
    path, begins = killed(tmp_path, [SMALL] * COUNT)
    RocksStore(path, read_only=True).close()
    log = newest_log(path)
    log.write_bytes(torn(log.read_bytes(), begins[-1], written_bytes(log), slice(-1, None)))
    note_up_to(path, COUNT - 1)
    with pytest.raises(StorageFailure, match=r"\d+\.log ends with a write that a power cut interrupted\. Start the"):
        RocksStore(path, read_only=True)
    assert keys(path) == list(range(COUNT - 1))


@pytest.mark.parametrize("seed", range(5))
def test_zeros_are_left_behind_each_write_to_a_reserved_log(tmp_path: Path, seed: int) -> None:
    """Otherwise a torn write would be followed by the log's end, or by too few zeros, and be taken for damage."""
    random = Random(seed)
    path = tmp_path / "000001.log"
    path.touch()
    log = ReservedLog(tmp_path)
    numbers, end = [1], 0
    log.before_write(numbers, SMALL)
    for _ in range(400):
        size = random.choice([SMALL, 40_000, LARGE_WRITE_BYTES, 300_000, RESERVED_BYTES + 1])
        log.before_write(numbers, size)
        end += size + 7 * (size // (BLOCK_BYTES - 7) + 2)  # a head of each fragment
        assert path.stat().st_size >= end + ZEROS_BYTES
    log.close()


@pytest.mark.parametrize("lost", [slice(0, 60), slice(-60, None), slice(BLOCK_BYTES, 2 * BLOCK_BYTES)])
def test_a_torn_write_at_the_end_of_a_reservation_is_dropped(tmp_path: Path, lost: slice) -> None:
    sizes = [SMALL] * 2 + [40_000] * ((RESERVED_BYTES - 20_000) // 40_040) + [LARGE]
    path, begins = killed(tmp_path, sizes)
    log = newest_log(path)
    data, end = log.read_bytes(), written_bytes(log)
    assert begins[-1] > RESERVED_BYTES - LARGE
    log.write_bytes(torn(data, begins[-1], end, lost))
    note_up_to(path, len(sizes) - 1)
    assert keys(path) == list(range(len(sizes) - 1))


def test_a_log_of_zeros_alone_has_no_writes(tmp_path: Path) -> None:
    path, _ = killed(tmp_path, [SMALL] * COUNT)
    files = examine(path)
    assert files is not None
    following = path / f"{max(int(log.stem) for log in path.glob('*.log')) + 1:06}.log"
    following.write_bytes(bytes(RESERVED_BYTES))
    assert read_log(following).first_sequence is None
    assert keys(path) == list(range(COUNT))


def test_where_no_length_can_be_reserved_writes_go_on(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    with files_no_larger_than(RESERVED_BYTES // 2):
        for index in range(COUNT):
            store.write([Write("log", b"%04d" % index, b"v" * SMALL)])
    (log,) = (tmp_path / "a").glob("*.log")
    assert log.stat().st_size == written_bytes(log)
    store.close()
    assert keys(tmp_path / "a") == list(range(COUNT))
