"""A machine that runs one node: starts it, kills it, freezes it, starts it again on the same disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol, TypeVar

from kshare_core.errors import StorageFailure
from kshare_rpc.network import Network
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore
from support.simulation.connections import ClientListeners
from support.simulation.disks.batch_files import FileSizes, opener
from support.simulation.disks.host_disk import HostDisk
from support.simulation.loop import HostDied, Incarnation, MonotonicClock, VirtualLoop
from support.simulation.network import SimulatedFabric, SimulatedNetwork, in_no_host
from support.simulation.rules.unexpected import is_expected

Answer = TypeVar("Answer")

EPOCH_MS = 1_767_225_600_000
"""Wall time at virtual time zero: 2026-01-01."""

UP_FOR_S = 10_000.0
"""How long a machine has run at most before the simulation starts."""

WRONG_BY_S = (0.0, 0.5, 30.0, 7_200.0)
"""How far the date of a machine may be wrong where clocks differ."""

SYNC_INTERVAL_S = 2.0
SUPERVISOR_PAUSE_S = 1.0
STOP_GRACE_MS = 1_000
STOP_LIMIT_S = 10.0


class Node(Protocol):
    """What all roles have in common; see docs/architecture.md."""

    async def start(self) -> None: ...

    async def stop(self, grace_ms: int) -> None: ...

    def problems(self) -> list[str]: ...


class HostClock:
    """The clocks of one host: the monotonic one of its loop, and the wall clock, which also jumps by `skew_ms`."""

    def __init__(self, loop: VirtualLoop, *, starts_at_s: float = 0.0, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self._starts_at_s = starts_at_s
        self.monotonic = MonotonicClock(starts_at_s)
        self.change_count = 0
        """How often its date jumped, or its rate became wrong."""

    @classmethod
    def that_differs(cls, loop: VirtualLoop, draw: random.Random) -> HostClock:
        """The clocks of a machine that started long before the others, and whose date is wrong."""
        skew_ms = int(draw.choice(WRONG_BY_S) * draw.uniform(-1000, 1000))
        return cls(loop, starts_at_s=draw.uniform(0.0, UP_FOR_S), skew_ms=skew_ms)

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int((self.monotonic.read(self._loop.now_s) - self._starts_at_s) * 1000)

    def jump(self, by_ms: int) -> None:
        self.skew_ms += by_ms
        self.change_count += 1

    def set_rate(self, rate: float) -> None:
        self.change_count += rate != 1.0
        self._loop.set_rate(self.monotonic, rate)


BuildNode = Callable[[Environment, Network, "SimulatedHost"], Node]


class SimulatedHost:
    """See the module's text. `on_started` runs in the host when its node is up (gateways open their door there)."""

    def __init__(
        self,
        name: str,
        *,
        seed: str,
        fabric: SimulatedFabric,
        listeners: ClientListeners,
        build: BuildNode,
        on_started: Callable[[SimulatedHost], None] = lambda host: None,
        unsynced_disk: bool = False,
        has_disk: bool = True,
        batch_files: FileSizes | None = None,
        clock: HostClock | None = None,
    ) -> None:
        self.name = name
        self.fabric = fabric
        self.listeners = listeners
        self.disk_conditions = HostDisk(
            random.Random(f"{seed}/{name}/disk"),
            random.Random(f"{seed}/{name}/disk faults"),
            random.Random(f"{seed}/{name}/faults of value files"),
            self,
        )
        self.disk = MemoryDisk(
            unsynced=unsynced_disk, needs_mending=True, sync_delay_s=self.disk_conditions.sync_delay_s
        )
        self.disk.events = self.disk_conditions
        self.clock = HostClock(fabric.loop) if clock is None else clock
        self.incarnation: Incarnation | None = None
        self.node: Node | None = None
        self._has_disk = has_disk
        self._batch_files = batch_files
        self._seed = seed
        self.build = build
        self._on_started = on_started
        self._lives = 0
        self.is_gone = False
        """Whether its machine is no part of the cluster any more: nothing starts it again."""
        self.death_count = 0
        self._deferred_count = 0
        self._graveyard: list[object] = []

    @property
    def loop(self) -> VirtualLoop:
        return self.fabric.loop

    @property
    def running(self) -> bool:
        return self.incarnation is not None

    @property
    def deferred_count(self) -> int:
        """Steps that waited, or wait now, until the host is resumed."""
        waiting = 0 if self.incarnation is None else len(self.incarnation.deferred)
        return self._deferred_count + waiting

    def by_its_clock(self, ask: Callable[[], Answer]) -> Answer:
        """What code of the host answers, which sees the host's time; the host runs."""
        assert self.incarnation is not None
        return self.incarnation.context.copy().run(ask)

    @property
    def lives(self) -> int:
        """How often it was started."""
        return self._lives

    def start(self) -> asyncio.Task[None]:
        """Begins a new life; the task ends when its node is up."""
        assert self.incarnation is None, f"{self.name} runs already"
        self._lives += 1
        incarnation = self.incarnation = Incarnation(self.name, self._lives, self.clock.monotonic)
        incarnation.stores_remotely = not self._has_disk
        self.fabric.note(f"{incarnation} starts")
        if self.disk.unsynced:
            self.fabric.loop.task_in(incarnation, self._sync_now_and_then(), f"{self.name}:sync")
        return self.fabric.loop.task_in(incarnation, self._start_node(incarnation), f"{self.name}:start")

    async def _start_node(self, incarnation: Incarnation) -> None:
        environment = Environment(
            clock=self.clock,
            random=random.Random(f"{self._seed}/{self.name}/{incarnation.number}"),
            open_store=self._open_store if self._has_disk else self._refuse_store,
        )
        self.node = self.build(environment, SimulatedNetwork(self.fabric, incarnation), self)
        try:
            await self.node.start()
        except StorageFailure as failure:
            if not is_expected(failure, incarnation, self.fabric.history):
                self.fabric.bugs.append(f"{incarnation} cannot start, and its disk did not fail: {failure!r}")
            self._give_up(failure)
            return
        self.fabric.note(f"{incarnation} is up")
        self._on_started(self)

    def _open_store(self, name: str) -> KeyValueStore:
        return self.disk.open_store(name) if self._batch_files is None else opener(self.disk, self._batch_files)(name)

    def _refuse_store(self, name: str) -> KeyValueStore:
        raise AssertionError(f"{self.name} has no disk, and its node opened store {name}")

    def _give_up(self, failure: StorageFailure) -> None:
        """A process that cannot start ends, and its supervisor starts it again."""
        loop = self.fabric.loop
        self.fabric.note(f"{self.incarnation} cannot start: {failure}")
        in_no_host(loop, loop.now_s, self.crash)
        in_no_host(loop, loop.now_s + SUPERVISOR_PAUSE_S, self._start_again)

    def _start_again(self) -> None:
        if not self.running and not self.is_gone:
            self.start()

    async def _sync_now_and_then(self) -> None:
        """The disk that lies writes back what it kept in memory, as a page cache does."""
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            self.disk.sync()

    def crash(self, *, silent: bool = False) -> None:
        """kill -9: no code of this life runs again. `silent`: the others notice only by their timeouts."""
        incarnation = self.incarnation
        if incarnation is None:
            return
        self.fabric.note(f"{incarnation} dies")
        incarnation.dead = True
        self.death_count += 1
        self._deferred_count += len(incarnation.deferred)
        self.incarnation = None
        # Nothing of it may be collected, and so run, before the end.
        self._graveyard.append((self.node, asyncio.all_tasks(self.fabric.loop)))
        self.node = None
        self.disk.crash()
        self.fabric.host_died(incarnation, silent=silent)
        self.listeners.host_died(incarnation, silent=silent)

    async def stop(self) -> None:
        """SIGTERM: the node stops in order; what is still running after `STOP_LIMIT_S` is killed."""
        incarnation, node = self.incarnation, self.node
        if incarnation is None:
            return
        if node is None:
            self.crash()  # its process has only begun, and handles no signal yet
            return
        self.fabric.note(f"{incarnation} stops")
        incarnation.is_stopping = True
        self.fabric.loop.note_ended_tasks(incarnation)
        task = self.fabric.loop.task_in(incarnation, node.stop(STOP_GRACE_MS), f"{self.name}:stop")
        try:
            await asyncio.wait([task], timeout=STOP_LIMIT_S)
        finally:  # also when the fault is called off: a node that stops is not one that runs
            failure = task.exception() if task.done() and not task.cancelled() else None
            if failure is not None and not isinstance(failure, HostDied):
                self.fabric.bugs.append(f"{self.name} could not stop: {failure!r}")
            if self.incarnation is incarnation:
                self.crash()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.incarnation is not None:
            self.incarnation.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.incarnation is not None and self.incarnation.paused:
            self._deferred_count += len(self.incarnation.deferred)
            self.fabric.loop.resume(self.incarnation)
