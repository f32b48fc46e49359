"""Syncs beside the event loop: by io_uring and by a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kshare_runtime.background_sync import BackgroundSync, RingSync, ThreadSync, background_sync


def is_offered(kind: Callable[[asyncio.AbstractEventLoop], BackgroundSync]) -> bool:
    """Whether this system lets a process sync that way; sandboxes often refuse io_uring."""
    loop = asyncio.new_event_loop()
    try:
        kind(loop).close()
    except (OSError, SystemError, ValueError, RuntimeError, NameError):
        return False
    finally:
        loop.close()
    return True


BY_THE_KERNEL = [kind for kind in (RingSync,) if is_offered(kind)]
KINDS: list[Callable[[asyncio.AbstractEventLoop], BackgroundSync]] = [*BY_THE_KERNEL, ThreadSync]


async def synced(sync: BackgroundSync, descriptor: int) -> bool:
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    sync.begin(descriptor, ended.set_result)
    assert not ended.done(), "it ends beside the loop"
    return await ended


@pytest.mark.parametrize("kind", KINDS)
def test_one_sync_after_the_other(kind: Callable[[asyncio.AbstractEventLoop], BackgroundSync], tmp_path: Path) -> None:
    async def test() -> None:
        sync = kind(asyncio.get_running_loop())
        with (tmp_path / "log").open("wb", buffering=0) as file:
            for _ in range(20):
                file.write(b"record")
                assert await synced(sync, file.fileno())
        sync.close()

    asyncio.run(test())


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_synced_is_not_durable(kind: Callable[[asyncio.AbstractEventLoop], BackgroundSync]) -> None:
    async def test() -> None:
        sync = kind(asyncio.get_running_loop())
        reading, writing = os.pipe()
        assert not await synced(sync, writing)
        os.close(reading)
        os.close(writing)
        assert not await synced(sync, writing)
        sync.close()

    asyncio.run(test())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_told_after_it_is_closed(
    kind: Callable[[asyncio.AbstractEventLoop], BackgroundSync], tmp_path: Path
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        told: list[bool] = []
        first, second = kind(loop), kind(loop)
        with (tmp_path / "log").open("wb", buffering=0) as file:
            file.write(b"record")
            first.begin(file.fileno(), told.append)
            first.close()
            assert await synced(second, file.fileno())
        second.close()
        assert told == []

    asyncio.run(test())


@pytest.mark.parametrize("refused", range(len(KINDS)))
def test_the_quickest_that_is_not_refused(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, loop: asyncio.AbstractEventLoop) -> None:
        raise PermissionError("Operation not permitted")

    for kind in BY_THE_KERNEL[:refused]:
        monkeypatch.setattr(kind, "__init__", refuse)

    async def test() -> None:
        sync = background_sync(asyncio.get_running_loop())
        assert type(sync) is KINDS[refused]
        sync.close()

    asyncio.run(test())
