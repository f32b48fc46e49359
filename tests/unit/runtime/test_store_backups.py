"""Copies of a store while it serves: what is left of one that fails, and what may happen while files are linked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.handlers.back_up import BackUpHandler
from kshare_rpc.generated.kshare.v1 import common_pb2
from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.ports import AppendedWrite
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_backups import BACKUPS_DIRECTORY, back_up, back_up_beside
from support.runtime.removals import RemovalsAtOnce

VALUE = b"v" * 100


def opened(path: Path) -> RocksValueFileStore:
    """Each value has a file of its own; removed ones are unlinked at once."""
    return RocksValueFileStore(
        RocksStore(path), family="log", prefix_bytes=1, from_bytes=1, file_bytes=1, removals=RemovalsAtOnce()
    )


def append(store: RocksValueFileStore, *keys: str) -> None:
    for key in keys:
        store.write([AppendedWrite("log", key.encode(), VALUE)])


def stored(store: RocksValueFileStore) -> list[str]:
    return [key.decode() for key, value in store.scan("log", b"") if value == VALUE]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksValueFileStore]:
    store = opened(tmp_path / "store")
    append(store, "a1", "b1")
    yield store
    store.close()


@contextmanager
def links_held() -> Iterator[None]:
    """Work beside the event loop waits until the end of the block."""
    release = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(release.wait)
    asyncio.get_running_loop().set_default_executor(executor)
    try:
        yield
    finally:
        release.set()


async def begun(store: RocksValueFileStore) -> asyncio.Task[Path]:
    task = asyncio.create_task(back_up_beside(store, "one"))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("is_beside", [False, True])
def test_nothing_is_left_of_a_copy_that_fails(store: RocksValueFileStore, tmp_path: Path, is_beside: bool) -> None:
    cannot_be_linked = tmp_path / "store" / FOLDER / b"b".hex() / "0000000009-00"
    cannot_be_linked.mkdir()
    with pytest.raises(KafkaError, match="cannot copy the store") as refused:
        if is_beside:
            asyncio.run(back_up_beside(store, "one"))
        else:
            back_up(store, "one")
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert list((tmp_path / BACKUPS_DIRECTORY).iterdir()) == []
    cannot_be_linked.rmdir()
    copy = opened(back_up(store, "one"))
    assert stored(copy) == ["a1", "b1"]
    copy.close()


def test_the_store_serves_while_its_files_are_linked(store: RocksValueFileStore, tmp_path: Path) -> None:
    """What is removed then is still in the copy, and what is written then is not."""

    async def test() -> Path:
        with links_held():
            task = await begun(store)
            store.delete_range("log", b"a", b"b")
            append(store, "b2", "c1")
            assert stored(store) == ["b1", "b2", "c1"]
        return await task

    copy = opened(asyncio.run(test()))
    assert stored(copy) == ["a1", "b1"]
    copy.close()
    assert sorted(folder.name for folder in (tmp_path / "store" / FOLDER).iterdir()) == [b"b".hex(), b"c".hex()]


def test_a_copy_that_is_cancelled_is_removed_when_its_links_are_made(
    store: RocksValueFileStore, tmp_path: Path
) -> None:
    async def test() -> None:
        with links_held():
            task = await begun(store)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())
    assert list((tmp_path / BACKUPS_DIRECTORY).iterdir()) == []


def test_a_store_that_is_closed_meanwhile_unlinks_nothing_more(store: RocksValueFileStore, tmp_path: Path) -> None:
    """The store belongs to another process then."""

    async def test() -> None:
        with links_held():
            task = await begun(store)
            store.delete_range("log", b"a", b"b")
            store.close()
        await task

    asyncio.run(test())
    assert len(list((tmp_path / "store" / FOLDER / b"a".hex()).iterdir())) == 1


def test_a_leader_copies_beside_its_event_loop(store: RocksValueFileStore, tmp_path: Path) -> None:
    async def test() -> common_pb2.BackUpStoreResponse:
        with links_held():
            request = common_pb2.BackUpStoreRequest(name="one")
            task = asyncio.ensure_future(BackUpHandler(store)(request, memoryview(b"")))
            await asyncio.sleep(0)
            assert not task.done()
        return await task

    assert asyncio.run(test()).directory == str(tmp_path / BACKUPS_DIRECTORY / "one")
