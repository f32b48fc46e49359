"""The core of a coordinator: the machine, its metadata store and its runner, as handlers and timers use them.

With RocksDB there is one machine, and it owns all partitions.

With a store that several coordinators share, the store reports what this coordinator gains and loses and what others
change (`MetadataListener`). These reports go through the runner's queue. So they are applied between commands, never
while a turn of the machine is being written. Ownership at this moment is read from the store, because a lease may
expire without any event. It is checked before a command is taken, when the command is decided, again when its append
took time, and before any read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kshare_coordinator.coordinators_view import coordinators_view
from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Command, Effect, Start
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_coordinator.machine.metadata_partitions import partition_of_group, partition_of_record
from kshare_coordinator.machine.records import (
    AnyRecord,
    CatalogFollowed,
    CatalogLoaded,
    GroupsGained,
    GroupsLost,
    Record,
)
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.metadata.appending import APPEND_BYTES_LIMIT
from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS, CoordinatorMember, MetadataStore, OwnershipLost
from kshare_coordinator.metadata.rocksdb_store import RocksDbMetadataStore
from kshare_coordinator.metrics import CoordinatorMetrics
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_runtime.machine import Decision, Machine, MachineRunner
from kshare_runtime.ports import Clock, Write

Answer = TypeVar("Answer")
AnyMachine = Machine[Command[Any], AnyRecord, Any, Effect]

RELOAD_INTERVAL_MS = 1_000
TURN_BYTES_LIMIT = APPEND_BYTES_LIMIT // 4
"""Limit of a turn's records with a shared store, whose append has a limit; one more command may exceed it."""


class UnavailableMachine:
    """The machine while the store can be neither written nor read: it has no state, so it refuses all commands."""

    def __init__(self, failure: StorageFailure) -> None:
        self.failure = failure
        """Why the store could not be read."""

    def decide(self, command: Command[Any], now_ms: int) -> Decision[Record, Any, Effect]:
        raise StorageFailure(str(self.failure)) from self.failure

    def replay(self, record: AnyRecord) -> None:
        raise AssertionError("an unavailable machine decides nothing, so there is nothing to replay")


class OwnershipListener(Protocol):
    """Callbacks to the node about changes of ownership, called after the machine has applied them."""

    def catalog_gained(self) -> None:
        """Commands of the catalog other than Start are refused until `open_catalog` is called."""
        ...

    def catalog_lost(self) -> None: ...

    def catalog_followed(self, *, nodes: bool) -> None:
        """Another coordinator changed the catalog, or the catalog was loaded."""
        ...

    def groups_gained(self, partition: int) -> None: ...

    def groups_lost(self, partition: int) -> None: ...


class Core:
    """The core; see the module's text. `act` carries out effects. The store calls the methods of MetadataListener."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        configs: Configs,
        act: Callable[[Sequence[Effect]], None],
        listener: OwnershipListener,
        broker_id: int = -1,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self._metrics = metrics or CoordinatorMetrics()
        self._store = store
        self._own_store = store if isinstance(store, RocksDbMetadataStore) else None
        self._configs = configs
        self._clock = clock
        self._act = act
        self._listener = listener
        self._broker_id = broker_id
        self._reload: asyncio.TimerHandle | None = None
        self.news = asyncio.Event()
        """Set at the next change of the catalog or of the coordinators, and then replaced by a new event."""
        self.watches_are_over = False
        self.on_reload: Callable[[], None] = lambda: None
        """Called whenever the machine is reloaded: its state that is in memory only is lost."""
        self._failed_write: str | None = None
        self._has_catalog = False
        self._stored: list[Write] | None = []
        """All rows, with RocksDB and until the machine is loaded."""
        self.members: dict[int, CoordinatorMember] = {}
        """Live coordinators by node id."""
        self.owners: dict[int, int] = {}
        """Node ids of the owners by partition."""
        self.coordinators = coordinators_view([], {})
        """The part of WatchCatalog's answer that is made of `members` and `owners`."""
        self._runner: MachineRunner[Command[Any], AnyRecord, Any, Effect] | None = None
        if self.is_shared:
            self._runner = MachineRunner(
                load=self._empty_machine,
                append=self._append_shared,
                act=act,
                now_ms=clock.now_ms,
                copy=_copy_of,
                admit=self._admit,
                size=_bytes_of,
                turn_bytes_limit=TURN_BYTES_LIMIT,
            )

    @property
    def is_shared(self) -> bool:
        """Whether several coordinators may share the store."""
        return self._own_store is None

    async def start(self, member: CoordinatorMember) -> None:
        """Returns when the catalog is loaded; StorageFailure if the store cannot be read."""
        await self._store.start(member, self)
        if self._runner is None:
            self._runner = MachineRunner(
                load=self._load,
                append=self._append,
                act=self._act,
                now_ms=self._clock.now_ms,
                check_writable=self._check_writable,
            )
            self._stored = None
        await self._runner.barrier()

    async def earlier_decided(self) -> None:
        """Returns when all commands that were submitted before are decided, and their effects carried out."""
        assert self._runner is not None
        await self._runner.barrier()

    async def stop(self) -> None:
        """Stops the runner and the store; commands in flight fail with StorageFailure."""
        if self._reload is not None:
            self._reload.cancel()
        if self._runner is not None:
            await self._runner.stop()
        await self._store.stop()

    # Reads and commands of handlers and timers

    @property
    def state(self) -> CoordinatorState:
        """The durable state, for background work that answers no request; StorageFailure while nothing is loaded."""
        machine = self._machine
        if isinstance(machine, CoordinatorMachine):
            return machine.state
        assert isinstance(machine, UnavailableMachine)
        raise StorageFailure(str(machine.failure)) from machine.failure

    @property
    def catalog_bytes_limit(self) -> int:
        """kshare.catalog.max.bytes."""
        return self._configs.integer("kshare.catalog.max.bytes")

    def state_of_catalog(self) -> CoordinatorState:
        """The state for answers about the catalog and transactions; KafkaError NOT_COORDINATOR, StorageFailure."""
        self.check((CATALOG,))
        return self.state

    def state_of_group(self, group_id: str) -> CoordinatorState:
        """The state for answers about a group; KafkaError NOT_COORDINATOR, StorageFailure."""
        if self.is_shared:  # otherwise the hash is not needed
            self.check((partition_of_group(group_id),))
        return self.state

    def has_group(self, group_id: str) -> bool:
        """Whether this coordinator owns the group now."""
        return not self.is_shared or self.owns(partition_of_group(group_id))

    def keeps_group(self, group_id: str) -> bool:
        """Whether no loss of the group has been reported yet: failed work on the group may then be retried."""
        return not self.is_shared or self.state.has_group_partition(partition_of_group(group_id))

    def own_group_partitions(self) -> list[int]:
        """The group partitions that this coordinator owns now, in order."""
        return [partition for partition in range(GROUP_PARTITIONS) if self.owns(partition)]

    def has_catalog(self) -> bool:
        """Whether this is the active coordinator now."""
        return self.owns(CATALOG)

    def check(self, partitions: Sequence[int]) -> None:
        """KafkaError NOT_COORDINATOR if one of `partitions` is not owned, with the owner's address if it is known."""
        if self.is_shared:
            for partition in partitions:
                if not self.owns(partition):
                    raise self._not_coordinator(partition)

    def submit(self, command: Command[Answer]) -> asyncio.Future[Answer]:
        """The command's answer, once its records are durable; raises KafkaError or StorageFailure."""
        if self._runner is None:
            raise StorageFailure("the coordinator is not started")
        self._metrics.submitted(command)
        if self.is_shared:
            for partition in command.homes():
                if not self._store.owns(partition):
                    refused: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                    refused.set_exception(self._not_coordinator(partition))
                    return refused
        return self._runner.submit(command)

    def owner_address(self, partition: int) -> str | None:
        """Address of a partition's owner; None while it is not known."""
        member = self.members.get(self.owners.get(partition, -1))
        return member.rpc_address if member else None

    def problems(self) -> list[str]:
        runner = self._runner
        if runner is None:
            return ["the coordinator is not started"]
        found = self._store.problems()
        failure = runner.storage_failure or self._failed_write
        if failure is not None:
            found.append(f"the newest write failed: {failure}")
        if isinstance(runner.machine, UnavailableMachine):
            found.append(f"the store cannot be read: {runner.machine.failure}")
        return found

    def store_mended(self) -> None:
        """Clears the failures of earlier writes: the store accepts writes again."""
        self._failed_write = None
        if self._runner is not None:
            self._runner.storage_failure = None

    def wake_watchers(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def end_watches(self) -> None:
        """Answers all waiting watches now and lets no further ones wait: the server is about to stop."""
        self.watches_are_over = True
        self.wake_watchers()

    # Calls of the store (MetadataListener)

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        if self._stored is not None and not self.is_shared:
            self._stored.extend(rows)
            return
        self._tell(CatalogLoaded(_records_of(rows)), lambda: self._listener.catalog_followed(nodes=True))

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        found = [_change_of(write) for write in writes]
        nodes = any(record.key.WhichOneof("kind") in ("node", "state_partition_owner") for record in found)
        self._tell(CatalogFollowed(found), lambda: self._listener.catalog_followed(nodes=nodes))

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        if self._stored is not None and not self.is_shared:
            self._stored.extend(rows)
        elif partition == CATALOG:
            self._tell(None, self._listener.catalog_gained)
        else:
            self._tell(GroupsGained(partition, _records_of(rows)), lambda: self._groups_gained(partition))

    def lost(self, partition: int) -> None:
        if partition == CATALOG:
            self._tell(None, self._catalog_lost)
        else:
            self._tell(GroupsLost(partition), lambda: self._listener.groups_lost(partition))

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        self.members = {member.node_id: member for member in sorted(members, key=lambda member: member.node_id)}
        self.owners = dict(sorted(owners.items()))
        self.coordinators = coordinators_view(list(self.members.values()), self.owners)
        self.wake_watchers()

    def _tell(self, record: AnyRecord | None, then: Callable[[], None]) -> None:
        assert self._runner is not None, "only a shared store tells anything after the start"
        self._runner.tell(record, then)

    def _groups_gained(self, partition: int) -> None:
        """The rows were read anew, so no state of an earlier failed write is left: its failure is cleared."""
        if self._runner is not None:
            self._runner.storage_failure = None
        self._listener.groups_gained(partition)

    def open_catalog(self) -> None:
        """Starts serving the catalog after it was gained."""
        self._has_catalog = self._store.owns(CATALOG)
        self.wake_watchers()

    def _catalog_lost(self) -> None:
        """Writes of the catalog are another coordinator's now, and whether the newest one failed does not matter."""
        self._has_catalog = False
        if self._runner is not None:
            self._runner.storage_failure = None
        self.wake_watchers()
        self._listener.catalog_lost()

    # Ownership

    def owns(self, partition: int) -> bool:
        """Whether this coordinator serves the partition now: the store owns it, and the machine has loaded it."""
        if not self._store.owns(partition):
            return False
        if not self.is_shared:
            return True
        return self._has_catalog if partition == CATALOG else self.state.has_group_partition(partition)

    def _admit(self, command: Command[Any]) -> None:
        if isinstance(command, Start):
            if not self._store.owns(CATALOG):
                raise self._not_coordinator(CATALOG)
        else:
            self.check(command.homes())

    def _not_coordinator(self, partition: int) -> KafkaError:
        what = "the catalog" if partition == CATALOG else f"group partition {partition}"
        address = None if self._store.owns(partition) else self.owner_address(partition)
        where = f"the coordinator at {address} has it" if address else "its coordinator is not known yet"
        return KafkaError(ErrorCode.NOT_COORDINATOR, f"This coordinator does not have {what}; {where}")

    # The machine and its rows

    @property
    def _machine(self) -> AnyMachine:
        if self._runner is None:
            raise StorageFailure("the coordinator is not started")
        return self._runner.machine

    def _empty_machine(self) -> CoordinatorMachine:
        machine = CoordinatorMachine(self._configs, broker_id=self._broker_id)
        machine.state.group_partitions = {}
        return machine

    def _append_shared(self, found: Sequence[AnyRecord]) -> Awaitable[None] | None:
        writes: dict[int, dict[bytes, Write]] = {}
        for record in found:
            if isinstance(record, Record):
                write = records.write_of(record)
                writes.setdefault(partition_of_record(record), {})[write.key] = write
        if not writes:
            self._metrics.appended(found)
            return None
        for partition in writes:
            if not self._store.owns(partition):  # no write was sent, so certainly none took effect
                raise self._not_coordinator(partition)
        waiting = self._store.append({partition: list(of_one.values()) for partition, of_one in writes.items()})
        return None if waiting is None else self._appended(waiting, found)

    async def _appended(self, waiting: Awaitable[None], found: Sequence[AnyRecord]) -> None:
        """Waits for an append; StorageFailure if ownership was lost meanwhile.

        The write may then have taken effect or not. NOT_COORDINATOR would be wrong: clients answer it by repeating the
        request at another coordinator.
        """
        try:
            with self._metrics.append(found):
                await waiting
        except OwnershipLost as lost:
            raise StorageFailure(f"The outcome of the write is unknown: {lost}") from lost

    def _check_writable(self, found: Sequence[AnyRecord]) -> None:
        """StorageFailure where RocksDB refuses writes and one of the records is written.

        An append that fails has the machine loaded again from all rows, which must not happen with each command.
        """
        assert self._own_store is not None
        if any(isinstance(record, Record) for record in found):
            try:
                self._own_store.check_writable()
            except StorageFailure:
                self._metrics.append_failures += 1
                raise

    def _append(self, found: Sequence[AnyRecord]) -> None:
        """Writes to RocksDB, which does not distinguish partitions: all rows go in under CATALOG."""
        writes = [records.write_of(record) for record in found if isinstance(record, Record)]
        if not writes:
            self._metrics.appended(found)
            return
        try:
            with self._metrics.append(found):
                self._store.append({CATALOG: writes})
        except StorageFailure as failure:
            self._failed_write = str(failure)
            raise
        self._failed_write = None

    def _load_now(self) -> CoordinatorMachine:
        assert self._own_store is not None
        rows = self._stored
        if rows is None:
            rows = [row for of_one in self._own_store.rows().values() for row in of_one]
        return CoordinatorMachine(self._configs, _records_of(rows), broker_id=self._broker_id)

    def _load(self) -> AnyMachine:
        is_first = self._stored is not None
        if not is_first:
            self.on_reload()
        try:
            return self._load_now()
        except StorageFailure as failure:
            if is_first:  # a store that cannot be read ends the start
                raise
            loop = asyncio.get_running_loop()
            self._reload = loop.call_later(RELOAD_INTERVAL_MS / 1000, self._load_again)
            return UnavailableMachine(failure)

    def _load_again(self) -> None:
        assert self._runner is not None
        self._runner.replace(self._load())
        self.wake_watchers()


def _records_of(rows: Sequence[Write]) -> list[Record]:
    """The records of these rows; StorageFailure if a row is not a record."""
    return [records.record_of(row.key, row.value) for row in rows if row.value is not None]


def _change_of(write: Write) -> Record:
    if write.value is None:
        return Record(key=records.Key.FromString(write.key))
    return records.record_of(write.key, write.value)


def _bytes_of(record: AnyRecord) -> int:
    return record.ByteSize() if isinstance(record, Record) else 0


def _copy_of(machine: AnyMachine) -> AnyMachine:
    assert isinstance(machine, CoordinatorMachine)
    return machine.copy()
