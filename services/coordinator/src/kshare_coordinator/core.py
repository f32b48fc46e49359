"""The machine, its store and its runner: what handlers and timers work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kshare_coordinator.machine import records
from kshare_coordinator.machine.classic_group import ClassicGroupInMemory
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_coordinator.machine.records import AnyRecord, Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs
from kshare_core.errors import StorageFailure
from kshare_runtime.machine import Decision, Machine, MachineRunner
from kshare_runtime.ports import Environment

Answer = TypeVar("Answer")

STORE_NAME = "coordinator"
RELOAD_INTERVAL_MS = 1_000


class UnavailableMachine:
    """Stands in while the store can be neither written nor read: it knows nothing, so it answers nothing."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def decide(self, command: Command[Any], now_ms: int) -> Decision[Record, Any, Effect]:
        raise StorageFailure(self.failure)

    def replay(self, record: AnyRecord) -> None:
        raise AssertionError("an unavailable machine decides nothing, so there is nothing to replay")


class Core:
    """Opens the store and loads the machine; StorageFailure where that fails. `act` carries out effects."""

    def __init__(
        self,
        *,
        environment: Environment,
        configs: Configs,
        act: Callable[[Sequence[Effect]], None],
        broker_id: int = -1,
    ) -> None:
        self._configs = configs
        self._broker_id = broker_id
        self._store = environment.open_store(STORE_NAME)
        self._reload: asyncio.TimerHandle | None = None
        self.catalog_changed = asyncio.Event()
        """Set at the next change of the catalog, and replaced by a new one."""
        self.on_reload: Callable[[], None] = lambda: None
        """Called whenever the machine is loaded anew: what it had in memory only is lost."""
        self._failed_write: str | None = None
        self._is_loaded = False
        self._runner: MachineRunner[Command[Any], AnyRecord, Any, Effect] = MachineRunner(
            load=self._load, append=self._append, act=act, now_ms=environment.clock.now_ms
        )
        self._is_loaded = True

    @property
    def state(self) -> CoordinatorState:
        """For reads; StorageFailure while nothing is loaded."""
        machine = self._runner.machine
        if isinstance(machine, CoordinatorMachine):
            return machine.state
        assert isinstance(machine, UnavailableMachine)
        raise StorageFailure(machine.failure)

    def submit(self, command: Command[Answer]) -> asyncio.Future[Answer]:
        """The answer once it is durable; raises KafkaError or StorageFailure."""
        return self._runner.submit(command)

    def problems(self) -> list[str]:
        found = []
        failure = self._runner.storage_failure or self._failed_write
        if failure is not None:
            found.append(f"the newest write failed: {failure}")
        if isinstance(self._runner.machine, UnavailableMachine):
            found.append(f"the store cannot be read: {self._runner.machine.failure}")
        return found

    def wake_watchers(self) -> None:
        self.catalog_changed.set()
        self.catalog_changed = asyncio.Event()

    def close(self) -> None:
        if self._reload is not None:
            self._reload.cancel()
        self._store.close()

    def _append(self, found: Sequence[AnyRecord]) -> None:
        stored = [record for record in found if not isinstance(record, ClassicGroupInMemory)]
        if not stored:
            return
        writes = {write.key: write for write in map(records.write_of, stored)}
        try:
            self._store.write(list(writes.values()))
        except StorageFailure as failure:
            self._failed_write = str(failure)
            raise
        self._failed_write = None

    def _load_now(self) -> CoordinatorMachine:
        rows = self._store.scan(records.FAMILY, b"")
        stored = (records.record_of(key, value) for key, value in rows)
        return CoordinatorMachine(self._configs, stored, broker_id=self._broker_id)

    def _load(self) -> Machine[Command[Any], AnyRecord, Any, Effect]:
        if self._is_loaded:
            self.on_reload()
        try:
            return self._load_now()
        except StorageFailure as failure:
            if not self._is_loaded:  # a store that cannot be read ends the start
                raise
            loop = asyncio.get_running_loop()
            self._reload = loop.call_later(RELOAD_INTERVAL_MS / 1000, self._load_again)
            return UnavailableMachine(str(failure))

    def _load_again(self) -> None:
        self._runner.replace(self._load())
        self.wake_watchers()
