"""The embedded engine: states in RocksDB of this node, one machine over all of them, and moves between nodes.

The machine loads the state of a share-partition at its first use, not at the start. All operations of one turn of the
event loop are made durable by one fsync, which runs beside the loop; those that come meanwhile share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_fastpath.prompt_future import PromptFuture
from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_runtime.machine import MachineRunner
from kshare_runtime.ports import Environment
from kshare_runtime.store_mending import StoreMending
from kshare_servicekit.metric_families import Readings
from kshare_share_coordinator.handlers.state_topic import StateTopicService
from kshare_share_coordinator.handlers.transfer_state_partition import TransferStatePartitionHandler
from kshare_share_coordinator.machine.operations import Operation, Result
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.maintenance.backup import BackupService
from kshare_share_coordinator.maintenance.confirmed_sync import ConfirmedSync
from kshare_share_coordinator.maintenance.opening import open_state_store
from kshare_share_coordinator.maintenance.state_walk import StateWalk
from kshare_share_coordinator.metrics import StateMetrics, read_store_metrics
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.reassignment.rows import StatePartitionRows
from kshare_share_coordinator.reassignment.sender import StatePartitionSender
from kshare_share_coordinator.reassignment.state_partition_reassignments import StatePartitionReassignments
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_log.port import Found
from kshare_share_coordinator.state_store import StateStore, family_of
from kshare_share_coordinator.state_topic import StateTopicIndex

WAITING_OPERATIONS_LIMIT = 20_000

_logger = logging.getLogger(__name__)


class EmbeddedStates:
    """A StateLog and a StateEngine over the store of this node, which is opened here; StorageFailure."""

    keeps_data_here = True
    highest_epoch = 0
    """The store knows of no epochs of owners: a state partition's rows are where its owner is."""

    def __init__(
        self,
        *,
        environment: Environment,
        follower: CatalogFollower,
        settings: ShareCoordinatorSettings,
        metrics: StateMetrics,
        move_metrics: MoveMetrics,
    ) -> None:
        self._settings = settings
        self._move_metrics = move_metrics
        self.store = open_state_store(environment)
        self._state_topic_index = StateTopicIndex(store=self.store, now_ms=environment.clock.now_ms)
        self._state_store = StateStore(
            store=self.store,
            state_partition_of=self._state_partition_of,
            state_topic=self._state_topic_index,
            metrics=metrics,
        )
        self.ownership = Ownership(
            node_id=settings.node_id,
            lease=follower,
            identity=self._state_store,
            now=asyncio.get_running_loop().time,
        )
        self.load = self._state_store.load
        self.report_corrupt = self._state_store.report_corrupt
        self._runner: MachineRunner[Operation, Record, Result, None] = MachineRunner(
            load=self._load_machine,
            append=self.append,
            act=_no_effects,
            now_ms=environment.clock.now_ms,
            queue_limit=WAITING_OPERATIONS_LIMIT,
        )
        self.submit = self._runner.submit
        self._newest_records: Sequence[Record] = ()
        """The records of the newest append."""
        self.state_topic = StateTopicService(
            index=self._state_topic_index,
            ownership=self.ownership,
            delete_retention_ms=settings.state_topic_delete_retention_ms,
            prune_interval_ms=settings.state_topic_prune_interval_ms,
        )
        self._mending = StoreMending(self.store.stored, report=_logger.warning, on_mended=self._store_mended)
        self._mending.start()
        self._walk = StateWalk(
            store=self.store,
            state_store=self._state_store,
            ownership=self.ownership,
            submit=self._runner.submit,
            interval_ms=settings.cold_partition_snapshot_interval_ms,
        )
        self._rows = StatePartitionRows(self.store)
        self._moves = self._new_moves(follower)
        self._confirmed_sync: ConfirmedSync | None = None

    # StateLog

    def gain(self, state_partition: int, owner_epoch: int) -> None:
        """The rows of a state partition come with its move."""

    def lose(self, state_partition: int) -> None:
        """The rows of a state partition go with its move."""

    def refusal(self, state_partition: int) -> Result | None:
        return _refusal(self._state_store.state_partition_damage(state_partition))

    def append(self, records: Sequence[Record]) -> PromptFuture[None]:
        self._newest_records = records
        return self._state_store.begin_append(records, self._machine.records_are_durable)

    def share_partitions(self, state_partition: int, start: bytes, limit: int) -> tuple[list[Found], bytes | None]:
        return self._state_store.share_partitions(family_of(state_partition), start, limit)

    def problems(self) -> list[str]:
        problems = [*self._state_store.problems(), *self._moves.problems()]
        problems += [*self._walk.problems(), *self._mending.problems()]
        if self._runner.storage_failure is not None:
            problems.append(f"the newest write failed: {self._runner.storage_failure}")
        return problems

    # StateEngine

    def key_refusal(self, key: SharePartitionKey) -> Result | None:
        if self._moves.has_unchecked:
            problem = self._moves.begin_serving(self._state_partition_of(key))
            if problem is not None:
                return _refusal(problem)
        return _refusal(self._state_store.damage(key)) if self.store.has_damage else None

    def handlers(self) -> Sequence[object]:
        sender = StatePartitionSender(
            ownership=self.ownership,
            rows=self._rows,
            barrier=self._runner.barrier,
            metrics=self._move_metrics,
            begin_serving=self._moves.begin_serving,
        )
        return [TransferStatePartitionHandler(sender), BackupService(self.store), self.state_topic]

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        self._moves.on_view(old, new)

    def start(self) -> None:
        self.state_topic.start()
        self._walk.start()
        self._confirmed_sync = ConfirmedSync(self.store)
        self._confirmed_sync.start()

    async def stop(self) -> None:
        await self._mending.stop()
        await self._moves.stop()
        await self.state_topic.stop()
        await self._walk.stop()
        if self._confirmed_sync is not None:
            await self._confirmed_sync.stop()

    async def close(self) -> None:
        self.store.close()

    def read_metrics(self, readings: Readings) -> None:
        read_store_metrics(readings, self.store)

    @property
    def corrupt_count(self) -> int:
        return self._state_store.corrupt_count

    def _new_moves(self, follower: CatalogFollower) -> StatePartitionReassignments:
        return StatePartitionReassignments(
            ownership=self.ownership,
            rows=self._rows,
            barrier=self._runner.barrier,
            forget=self._forget,
            channel=follower.channel,
            coordinator=lambda: follower.coordinator,
            piece_bytes=self._settings.move_piece_bytes,
            metrics=self._move_metrics,
        )

    def _load_machine(self) -> ShareCoordinatorMachine:
        self._machine = ShareCoordinatorMachine(
            load=self._state_store.load,
            snapshot_update_records_per_snapshot=self._settings.snapshot_update_records_per_snapshot,
        )
        return self._machine

    def _store_mended(self) -> None:
        self._runner.storage_failure = None

    def _state_partition_of(self, key: SharePartitionKey) -> int:
        return self.ownership.state_partition_of(key)

    def _forget(self, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        self.store.finish_writes()
        self._machine.forget(is_forgotten)
        self._state_store.forget(is_forgotten)
        self._state_topic_index.forget()
        if all(is_forgotten(record.key) for record in self._newest_records):
            self._runner.storage_failure = None  # this node is not asked to write them again


def _refusal(damage: str | None) -> Result | None:
    return None if damage is None else Result(ErrorCode.KAFKA_STORAGE_ERROR, damage)


def _no_effects(effects: Sequence[None]) -> None:
    """Carries out the machine's effects, of which it has none: it only answers."""
