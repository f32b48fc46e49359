"""RocksStore's guarantees about crashes, damage and full disks; its contract as a store is in tests/contract."""

from __future__ import annotations

import gc
import shutil
import time
from pathlib import Path

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.clock import SystemClock, system_environment
from kshare_runtime.confirmed_writes import FILE_NAME
from kshare_runtime.held_memory import HeldMemory
from kshare_runtime.ports import StoreMemory, Write
from kshare_runtime.rocks_store import RocksStore
from support.runtime.damaged_files import files_no_larger_than, newest_log, note_up_to, written_bytes

MEBIBYTE = 1024 * 1024


def copy_of_a_running_store(directory: Path, count: int) -> Path:
    """What a kill -9 leaves: the files of a store with `count` writes, copied while it is open."""
    store = RocksStore(directory / "running")
    for index in range(count):
        store.write([Write("log", b"%04d" % index, b"v" * 100)])
    shutil.copytree(directory / "running", directory / "left")
    store.close()
    return directory / "left"


def keys(path: Path) -> list[bytes]:
    store = RocksStore(path)
    found = [key for key, _ in store.scan("log", b"")]
    store.close()
    return found


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    assert keys(copy_of_a_running_store(tmp_path, 20)) == [b"%04d" % index for index in range(20)]


@pytest.mark.parametrize("missing_bytes", [1, 7, 60, 119])
def test_a_write_that_was_cut_off_is_dropped_and_no_other(tmp_path: Path, missing_bytes: int) -> None:
    path = copy_of_a_running_store(tmp_path, 20)
    log = newest_log(path)
    with log.open("r+b") as file:
        file.truncate(written_bytes(log) - missing_bytes)
    refused = shutil.copytree(path, tmp_path / "refused")
    with pytest.raises(StorageFailure, match=r"confirmed up to number 20, but the files end at 19\. Restore"):
        RocksStore(refused)
    # The crash came in the middle of the last write, so nobody was told of it.
    note_up_to(path, 19)
    assert keys(path) == [b"%04d" % index for index in range(19)]
    (refused / FILE_NAME).unlink()
    assert keys(refused) == [b"%04d" % index for index in range(19)]


def test_a_manifest_that_was_cut_off_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    path = copy_of_a_running_store(tmp_path, 20)
    (manifest,) = path.glob("MANIFEST-*")
    with manifest.open("r+b") as file:
        file.truncate(manifest.stat().st_size - 1)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(
        StorageFailure, match=r"MANIFEST-\d+ was cut off: it has \d+ of \d+ bytes\..*nothing was changed"
    ):
        RocksStore(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize("note", [b"", b"short", bytes(28)])
def test_a_damaged_note_asks_for_nothing(tmp_path: Path, note: bytes) -> None:
    path = copy_of_a_running_store(tmp_path, 20)
    (path / FILE_NAME).write_bytes(note)
    assert keys(path) == [b"%04d" % index for index in range(20)]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.99])
def test_damage_refuses_to_open_instead_of_losing_what_was_synced(tmp_path: Path, share: float) -> None:
    path = copy_of_a_running_store(tmp_path, 20)
    log = newest_log(path)
    data = bytearray(log.read_bytes())
    data[int(written_bytes(log) * share)] ^= 1
    log.write_bytes(data)
    # In the last write it looks like a torn one, and the note says that it was confirmed.
    found = "writes were confirmed up to number 20" if share > 0.95 else "Corruption"
    with pytest.raises(StorageFailure, match=rf"left: {found}.*Restore the directory from a copy"):
        RocksStore(path)


def test_damage_in_a_table_is_found_when_it_is_read(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    for index in range(400):
        store.write([Write("log", b"%04d" % index, bytes([index % 251]) * 1000)])
    store.close()
    # Opening a store moves its log into tables.
    RocksStore(tmp_path / "a").close()
    table = max((tmp_path / "a").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    store = RocksStore(tmp_path / "a")
    with pytest.raises(StorageFailure, match="Corruption"):
        list(store.scan("log", b""))
    with pytest.raises(StorageFailure, match="Corruption"):
        list(store.scan("log", b"", reverse=True))
    store.close()


def test_a_full_disk_fails_the_write_and_keeps_the_rest(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    store.write([Write("log", b"1", b"x")])
    with files_no_larger_than(64 * 1024), pytest.raises(StorageFailure, match=r"cannot write the store .*a: IO error"):
        store.write([Write("log", b"2", b"x" * 100_000), Write("log", b"3", b"x")])
    assert [key for key, _ in store.scan("log", b"")] == [b"1"]
    with pytest.raises(StorageFailure):
        store.write([Write("log", b"4", b"x")])
    store.close()
    store = RocksStore(tmp_path / "a")
    store.write([Write("log", b"5", b"x")])
    assert [key for key, _ in store.scan("log", b"")] == [b"1", b"5"]
    store.close()


def test_a_locked_directory_says_what_to_do(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    with pytest.raises(StorageFailure, match=r"a: .*Another process has it open"):
        RocksStore(tmp_path / "a")
    store.close()


def test_a_place_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailure, match="Check that the directory exists"):
        RocksStore(tmp_path / "file" / "a")


def test_the_environment_of_a_process(tmp_path: Path) -> None:
    environment = system_environment(tmp_path)
    store = environment.open_store("leader")
    store.write([Write("log", b"1", b"x")])
    store.close()
    assert (tmp_path / "leader" / "CURRENT").exists()
    assert isinstance(environment.clock, SystemClock)
    assert environment.clock.now_ms() > 1_600_000_000_000
    assert environment.random.getrandbits(64) != system_environment(tmp_path).random.getrandbits(64)


def test_the_end_of_a_scan_survives_what_happens_between(tmp_path: Path) -> None:
    """rocksdict frees the bytes of a bound with its ReadOptions, although the iterator still compares with them."""
    store = RocksStore(tmp_path / "a")
    keys_of = {name: [name + b"a" * 20 + suffix for suffix in (b"\0\0", b"\0\1", b"\0\3")] for name in (b"1", b"2")}
    store.write([Write("log", key, key) for found in keys_of.values() for key in found])
    for turn in range(3_000):
        name = b"12"[turn % 2 : turn % 2 + 1]
        scan = store.scan("log", name + b"a" * 20, name + b"a" * 20 + b"\0\2")
        junk = [bytes(turn % 64 + size) for size in range(8)]
        assert [key for key, _ in scan] == keys_of[name][:2]
        del junk
    store.close()


def test_a_scan_that_is_given_up_keeps_nothing(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "a")
    store.write([Write("log", b"%d" % index, b"x") for index in range(9)])
    for _ in range(100):
        next(iter(store.scan("log", b"")))
    gc.collect()
    assert store.open_scans == 0
    store.close()


def test_a_store_gives_the_memory_of_write_buffers_and_blocks_back(tmp_path: Path) -> None:
    held = HeldMemory()
    store = RocksStore(tmp_path / "a", memory=StoreMemory(64 * MEBIBYTE, 8 * MEBIBYTE), held_memory=held)
    memtables, blocks = held.caches
    assert (memtables.limit_bytes, blocks.limit_bytes) == (64 * MEBIBYTE, 8 * MEBIBYTE)
    for index in range(12):
        store.write([Write("log", b"%02d%04d" % (index, row), bytes(8192)) for row in range(128)])
    assert memtables.used_bytes() > 12 * MEBIBYTE
    memtables.shrink(MEBIBYTE)
    deadline = time.monotonic() + 30
    while memtables.used_bytes() > MEBIBYTE:
        assert time.monotonic() < deadline, "the write buffers were not flushed"
    assert len(list(store.scan("log", b""))) == 12 * 128
    assert blocks.used_bytes() > 4 * MEBIBYTE
    blocks.shrink(MEBIBYTE)
    assert blocks.used_bytes() <= MEBIBYTE
    assert len(list(store.scan("log", b""))) == 12 * 128
    assert blocks.used_bytes() > 4 * MEBIBYTE, "it may grow up to its limit again"
    store.close()
    assert held.caches == []
    assert len(keys(tmp_path / "a")) == 12 * 128


def test_write_buffers_are_flushed_above_their_limit(tmp_path: Path) -> None:
    held = HeldMemory()
    store = RocksStore(tmp_path / "a", memory=StoreMemory(4 * MEBIBYTE, MEBIBYTE), held_memory=held)
    for index in range(40):
        store.write([Write("log", b"%04d" % index, bytes(MEBIBYTE // 2))])
    deadline = time.monotonic() + 30
    while held.caches[0].used_bytes() > 6 * MEBIBYTE:
        assert time.monotonic() < deadline, "the write buffers were not flushed"
    store.close()
