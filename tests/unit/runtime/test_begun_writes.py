"""Writes of a RocksStore that become durable beside the event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import Ended
from kshare_runtime.begun_writes import BegunWrites
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import WRITE_BUFFER_BYTES, RocksStore
from support.runtime.damaged_files import files_no_larger_than

LIMIT_BYTES = 64 * 1024


class HeldSync:
    """A sync that ends when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.descriptor: int | None = None
        self._ended: Ended | None = None

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None
        self.descriptor, self._ended = descriptor, ended

    def close(self) -> None:
        self._ended = None

    @property
    def is_under_way(self) -> bool:
        return self._ended is not None

    def end(self, *, is_durable: bool = True) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None
        ended(is_durable)


class Written:
    """The results of writes, in the order in which they came: a number, and whether it is durable."""

    def __init__(self) -> None:
        self.results: list[tuple[int, bool]] = []

    def of(self, number: int) -> Callable[[StorageFailure | None], None]:
        return lambda failure: self.results.append((number, failure is None))


def record(number: int, size_bytes: int = 1) -> list[Write]:
    return [Write("log", b"%04d" % number, b"x" * size_bytes)]


def numbers(store: RocksStore) -> list[int]:
    return [int(key) for key, _ in store.scan("log", b"")]


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


@pytest.fixture
def held() -> list[HeldSync]:
    return []


@pytest.fixture
def store(tmp_path: Path, held: list[HeldSync]) -> RocksStore:
    """A store whose newest log is known, so that the next begun write waits for a sync of the test's."""

    def new_sync(loop: asyncio.AbstractEventLoop) -> HeldSync:
        held.append(HeldSync(loop))
        return held[-1]

    opened = RocksStore(tmp_path / "a", new_sync=new_sync)

    async def begin_log() -> None:
        opened.begin_write(record(0), lambda failure: None)
        opened.finish_writes()

    run(begin_log)
    return opened


def test_those_of_one_sync_share_it_and_later_ones_the_next(store: RocksStore, held: list[HeldSync]) -> None:
    async def test() -> None:
        written = Written()
        for number in (1, 2, 3):
            store.begin_write(record(number), written.of(number))
        assert numbers(store) == [0, 1, 2, 3] and written.results == []
        (sync,) = held
        sync.end()
        assert written.results == [(1, True)], "the others were begun after this sync"
        assert sync.is_under_way
        sync.end()
        assert written.results == [(1, True), (2, True), (3, True)] and not sync.is_under_way
        store.close()

    run(test)


def test_those_that_must_be_durable_now_do_not_rely_on_the_opening_of_the_sync_under_way(
    store: RocksStore, held: list[HeldSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells each opening of a file once that bytes were not written: a second sync of it would succeed."""

    async def test() -> None:
        synced: list[int] = []
        monkeypatch.setattr("os.fdatasync", synced.append)
        written = Written()
        store.begin_write(record(1), written.of(1))
        assert held[0].is_under_way
        store.finish_writes()
        assert written.results == [(1, True)]
        (descriptor,) = synced
        assert held[0].descriptor is not None and descriptor != held[0].descriptor
        assert os.fstat(descriptor).st_ino == os.fstat(held[0].descriptor).st_ino
        monkeypatch.undo()
        held[0].end()
        store.close()

    run(test)


def test_a_process_that_ends_before_the_sync_has_confirmed_nothing(
    store: RocksStore, held: list[HeldSync], tmp_path: Path
) -> None:
    async def test() -> None:
        store.begin_write(record(1), lambda failure: None)
        (log,) = store.path.glob("*.log")
        shutil.copytree(store.path, tmp_path / "crashed")
        held[0].end()
        shutil.copytree(store.path, tmp_path / "confirmed")
        store.close()
        for name, is_complaint in (("crashed", False), ("confirmed", True)):
            lost = tmp_path / name / log.name
            content = lost.read_bytes()
            lost.write_bytes(content[: content.rindex(b"0001")])  # a power cut lost the write
            if is_complaint:
                with pytest.raises(StorageFailure, match="writes were confirmed up to"):
                    RocksStore(tmp_path / name)
            else:
                again = RocksStore(tmp_path / name)
                assert numbers(again) == [0]
                again.close()

    run(test)


def test_a_synced_write_and_a_close_do_not_leave_begun_ones_behind(store: RocksStore) -> None:
    async def test() -> None:
        written = Written()
        store.begin_write(record(1), written.of(1))
        store.write(record(2))
        store.begin_write(record(3), written.of(3))
        store.finish_writes()
        assert written.results == [(1, True), (3, True)]
        store.begin_write(record(4), written.of(4))
        store.close()
        assert written.results == [(1, True), (3, True), (4, True)]
        again = RocksStore(store.path)
        assert numbers(again) == [0, 1, 2, 3, 4]
        again.close()

    run(test)


def test_a_new_log_of_the_database_is_followed(store: RocksStore, held: list[HeldSync]) -> None:
    async def test() -> None:
        written = Written()
        (first_log,) = store.path.glob("*.log")
        number = 0
        while first_log in set(store.path.glob("*.log")) and len(list(store.path.glob("*.log"))) == 1:
            number += 1
            assert number < 100, "the write buffer is full long since"
            store.begin_write(record(number, WRITE_BUFFER_BYTES // 8), written.of(number))
        await asyncio.sleep(0)
        assert written.results == [(n, True) for n in range(1, number + 1)], "the database has synced both logs"
        for sync in held:
            if sync.is_under_way:
                sync.end()  # of the log before
        store.begin_write(record(number + 1), written.of(number + 1))
        assert len(written.results) == number
        held[-1].end()
        assert len(written.results) == number + 1
        store.close()
        again = RocksStore(store.path)
        assert numbers(again) == list(range(number + 2))
        again.close()

    run(test)


def test_where_our_sync_fails_the_database_decides(store: RocksStore, held: list[HeldSync]) -> None:
    async def test() -> None:
        written = Written()
        store.begin_write(record(1), written.of(1))
        store.begin_write(record(2), written.of(2))
        held[0].end(is_durable=False)
        assert written.results == [(1, True), (2, True)] and store.write_failure is None
        store.close()

    run(test)


def test_a_write_that_the_disk_refuses_fails_alone(store: RocksStore, held: list[HeldSync]) -> None:
    async def test() -> None:
        written = Written()
        store.begin_write(record(1), written.of(1))
        with files_no_larger_than(LIMIT_BYTES), pytest.raises(StorageFailure, match="cannot write the store"):
            store.begin_write(record(2, 2 * LIMIT_BYTES), written.of(2))
        with pytest.raises(StorageFailure, match="an earlier write failed"):
            store.begin_write(record(3), written.of(3))
        assert store.mend()
        assert written.results == [(1, True)], "it was begun before, and mending waits for it"
        assert numbers(store) == [0, 1]
        store.begin_write(record(4), written.of(4))
        store.finish_writes()
        assert written.results == [(1, True), (4, True)] and numbers(store) == [0, 1, 4]
        store.close()

    run(test)


def test_after_a_failed_sync_all_that_wait_for_one_fail_in_order(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "000007.log").write_bytes(b"")
        written, noted = Written(), list[int]()
        sync = HeldSync(asyncio.get_running_loop())
        answers: list[StorageFailure | None] = [None, StorageFailure("Input/output error")]

        def by_database() -> None:
            failure = answers.pop(0)
            if failure is not None:
                raise failure

        begun = BegunWrites(
            tmp_path,
            sync_by_database=by_database,
            note=lambda sequence, manifest_bytes: noted.append(sequence),
            new_sync=lambda loop: sync,
        )
        for number in range(4):
            begun.add(number, 0, [7], written.of(number))
        await asyncio.sleep(0)
        assert (written.results, noted) == ([(0, True)], [0])
        sync.end(is_durable=False)
        assert written.results == [(0, True), (1, False), (2, False), (3, False)]
        assert noted == [0] and not sync.is_under_way
        begun.close()

    run(test)


@pytest.mark.parametrize("is_range", [False, True])
def test_a_synced_write_does_not_follow_one_that_is_not(
    store: RocksStore, held: list[HeldSync], monkeypatch: pytest.MonkeyPatch, is_range: bool
) -> None:
    """At a power cut the disk may have the later one only, and a hole before a whole write is damage."""

    async def test() -> None:
        synced_up_to: list[list[int]] = []
        monkeypatch.setattr("os.fdatasync", lambda descriptor: synced_up_to.append(numbers(store)))
        written = Written()
        store.begin_write(record(1), written.of(1))
        if is_range:
            store.delete_range("log", b"0009", b"0010")
        else:
            store.write(record(2))
        assert synced_up_to == [[0, 1]] and written.results == []
        await asyncio.sleep(0)
        assert written.results == [(1, True)]
        monkeypatch.undo()
        held[0].end()
        store.close()

    run(test)
