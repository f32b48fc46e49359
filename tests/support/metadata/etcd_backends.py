"""The two etcds that tests of metadata run on: a real one in real time, and the model in virtual time.

A scene is a coroutine function that takes a Backend. `waiting for a condition` is polling on the loop's clock: virtual
time costs nothing, and with a real etcd nobody else could tell when it is done.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from kshare_coordinator.metadata.etcd.grpc_etcd import GrpcEtcd
from kshare_coordinator.metadata.etcd.port import Etcd
from kshare_coordinator.metadata.etcd.settings import EtcdSettings
from support.environment.etcd import EtcdServer
from support.environment.machine_stalls import MachineStalls
from support.metadata.memory_etcd import MemoryEtcd
from support.simulation.loop import VirtualLoop

TIME_LIMIT_MS = 500
SCENE_LIMIT_S = 60
POLL_INTERVAL_S = 0.005
MEMORY_BYTES = 1 << 30


class Backend(Protocol):
    """An etcd that can be told what happens to it."""

    def client(self) -> Etcd: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def restart(self) -> None:
        """Its data stays; connections do not."""
        ...


class RealBackend:
    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self.pause = server.pause
        self.resume = server.resume
        self.restart = server.restart

    def client(self) -> Etcd:
        return GrpcEtcd(EtcdSettings(endpoints=(self._server.endpoint,)), time_limit_ms=TIME_LIMIT_MS)


class MemoryBackend:
    def __init__(self) -> None:
        self.server = MemoryEtcd()
        self.pause = self.server.pause
        self.resume = self.server.resume
        self.restart = self.server.restart

    def client(self) -> Etcd:
        return self.server.client(time_limit_ms=TIME_LIMIT_MS)


Scene = Callable[[Backend], Awaitable[None]]
Play = Callable[[Scene], None]


@contextmanager
def real_etcd(*arguments: str) -> Iterator[EtcdServer]:
    """A server of its own, with more arguments of etcd's."""
    with tempfile.TemporaryDirectory(dir=_quick_folder()) as folder:
        server = EtcdServer(Path(folder), arguments=arguments)
        try:
            with MachineStalls() as stalls, machine_stalls(stalls):
                yield server
        finally:
            server.stop()


def _quick_folder() -> str | None:
    """In memory where there is room: etcd syncs each write, and a slow disk would make calls of half a second fail."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_BYTES else None


_stalls: ContextVar[MachineStalls | None] = ContextVar("stalls", default=None)
"""Of the machine, while a real etcd runs."""


@contextmanager
def machine_stalls(stalls: MachineStalls) -> Iterator[None]:
    """Makes `allowed_s` add what the machine took."""
    token = _stalls.set(stalls)
    yield
    _stalls.reset(token)


def allowed_s(bound_s: float, *, since: float) -> float:
    """The bound for what began at `since` by the loop's clock; what the machine took from it is added in real time.

    In virtual time nothing is: there the product's bounds are exact.
    """
    stalls, now = _stalls.get(), asyncio.get_running_loop().time()
    return bound_s if stalls is None else bound_s + stalls.credit_s(since, now, bound_s)


def play_on(kind: str, scene: Scene) -> None:
    """Plays it on "etcd" or on "memory"."""
    if kind == "memory":
        play_in_virtual_time(scene)
        return
    with real_etcd() as server:

        async def main() -> None:
            await asyncio.wait_for(scene(RealBackend(server)), SCENE_LIMIT_S)

        asyncio.run(main())


def play_in_virtual_time(scene: Scene) -> None:
    async def main() -> None:
        await scene(MemoryBackend())

    loop = VirtualLoop(time_limit=SCENE_LIMIT_S * 10)
    loop.run(main())
    assert loop.problems == []


async def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> float:
    """Waits until it is true, and returns how many seconds that took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    while not condition():
        assert loop.time() - began_at < within_s, f"not within {within_s} s"
        await asyncio.sleep(POLL_INTERVAL_S)
    return loop.time() - began_at
