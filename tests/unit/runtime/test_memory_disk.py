"""What a MemoryDisk keeps and loses at a crash; the contract of its stores is in tests/contract."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.memory_store import DiskEvents, MemoryDisk
from kshare_runtime.ports import Write


def test_a_crash_keeps_what_was_written_and_ends_the_old_store() -> None:
    disk = MemoryDisk()
    store = disk.open_store("a")
    store.write([Write("x", b"1", b"one")])
    disk.crash()
    with pytest.raises(StorageFailure, match="closed"):
        store.write([Write("x", b"2", b"two")])
    again = disk.open_store("a")
    store.close()  # too late to matter
    with pytest.raises(StorageFailure, match="already open"):
        disk.open_store("a")
    assert list(again.scan("x", b"")) == [(b"1", b"one")]


def test_an_unsynced_disk_loses_at_a_crash_what_it_showed_before() -> None:
    disk = MemoryDisk()
    store = disk.open_store("a")
    store.write([Write("x", b"1", b"one"), Write("x", b"2", b"two")])
    disk.unsynced = True
    store.write([Write("x", b"1", None), Write("x", b"3", b"three"), Write("y", b"1", b"y")])
    store.write([Write("x", b"1", b"changed")])
    store.delete_range("x", b"2", b"9")
    assert list(store.scan("x", b"")) == [(b"1", b"changed")]
    disk.crash()
    store = disk.open_store("a")
    assert list(store.scan("x", b"")) == [(b"1", b"one"), (b"2", b"two")]
    assert store.get("y", b"1") is None


@pytest.mark.parametrize("make_durable", ["close", "sync"])
def test_an_unsynced_disk_keeps_what_was_synced(make_durable: str) -> None:
    disk = MemoryDisk(unsynced=True)
    store = disk.open_store("a")
    store.write([Write("x", b"1", b"one")])
    if make_durable == "close":
        store.close()
    else:
        disk.sync()
    disk.crash()
    assert disk.open_store("a").get("x", b"1") == b"one"


def test_writes_that_shall_fail_change_nothing() -> None:
    disk = MemoryDisk()
    store = disk.open_store("a")
    store.write([Write("x", b"1", b"one")])
    disk.fail_next_writes(2, "No space left on device")
    with pytest.raises(StorageFailure, match="a: No space left on device"):
        store.write([Write("x", b"2", b"two")])
    with pytest.raises(StorageFailure, match="No space"):
        store.delete_range("x", b"", b"9")
    store.write([Write("x", b"3", b"three")])
    assert [key for key, _ in store.scan("x", b"")] == [b"1", b"3"]


def test_a_crash_undoes_begun_writes_that_are_not_durable() -> None:
    async def test() -> None:
        disk = MemoryDisk(sync_delay_s=lambda: 3600.0)
        store = disk.open_store("a")
        store.write([Write("x", b"1", b"one")])
        told: list[StorageFailure | None] = []
        store.begin_write([Write("x", b"1", b"two")], told.append)
        store.begin_write([Write("x", b"1", None), Write("x", b"2", b"two")], told.append)
        assert list(store.scan("x", b"")) == [(b"2", b"two")] and told == []
        disk.crash()
        again = disk.open_store("a")
        assert list(again.scan("x", b"")) == [(b"1", b"one")] and told == []
        again.begin_write([Write("x", b"3", b"three")], told.append)
        again.write([Write("x", b"4", b"four")])
        disk.crash()
        assert [key for key, _ in disk.open_store("a").scan("x", b"")] == [b"1", b"3", b"4"], "a sync syncs all before"

    asyncio.run(test())


def test_a_sync_that_fails_takes_back_all_that_waits_for_one() -> None:
    async def test() -> None:
        disk = MemoryDisk(needs_mending=True, sync_delay_s=lambda: 3600.0)
        store = disk.open_store("a")
        told: list[StorageFailure | None] = []
        store.begin_write([Write("x", b"1", b"one")], told.append)
        store.finish_writes()
        disk.fail_next_syncs(1)
        store.begin_write([Write("x", b"2", b"two")], told.append)
        store.begin_write([Write("x", b"3", b"three")], told.append)
        store.finish_writes()
        assert [failure is None for failure in told] == [True, False, False]
        assert [key for key, _ in store.scan("x", b"")] == [b"1"]
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            store.begin_write([Write("x", b"4", b"four")], told.append)
        assert store.mend()
        store.begin_write([Write("x", b"5", b"five")], told.append)
        store.finish_writes()
        assert [key for key, _ in store.scan("x", b"")] == [b"1", b"5"] and told[-1] is None

    asyncio.run(test())


def test_begun_writes_whose_sync_fails_are_before_a_refused_write_in_the_log() -> None:
    """A crash leaves the failed writes from the first on: one of two is the one that was begun before."""

    class OneIsFound(DiskEvents):
        def failed_writes_found(self, count: int) -> int:
            assert count == 2
            return 1

    async def test() -> None:
        disk = MemoryDisk(needs_mending=True, sync_delay_s=lambda: 3600.0)
        disk.events = OneIsFound()
        store = disk.open_store("a")
        store.begin_write([Write("x", b"1", b"begun")], lambda failure: None)
        disk.fail_next_writes(1)
        with pytest.raises(StorageFailure, match="No space"):
            store.write([Write("x", b"1", b"refused")])
        disk.fail_next_syncs(1)
        store.finish_writes()
        assert store.get("x", b"1") is None
        disk.crash()
        assert disk.open_store("a").get("x", b"1") == b"begun"

    asyncio.run(test())
