"""The whole share coordinator: store, machine, catalog, moves and service of one node.

The machine loads the state of a share-partition at its first use, not at the start. All RPCs of one turn of the event
loop are made durable by one fsync (`kshare_runtime.machine.MachineRunner`), then answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import SHARE_COORDINATOR
from kshare_rpc.network import Network, Server, Service
from kshare_rpc.serving import handlers_of
from kshare_runtime.machine import MachineRunner
from kshare_runtime.ports import Environment
from kshare_runtime.store_mending import StoreMending
from kshare_servicekit.metrics_server import Metrics
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.handlers.list_state_summaries import ListStateSummariesHandler, StateSummaries
from kshare_share_coordinator.handlers.operation_service import OperationService, operation_handlers
from kshare_share_coordinator.handlers.state_topic import StateTopicService
from kshare_share_coordinator.handlers.transfer_state_partition import TransferStatePartitionHandler
from kshare_share_coordinator.machine.operations import Operation, Result
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.maintenance.backup import BackupService
from kshare_share_coordinator.maintenance.confirmed_sync import ConfirmedSync
from kshare_share_coordinator.maintenance.opening import open_state_store
from kshare_share_coordinator.maintenance.state_walk import StateWalk
from kshare_share_coordinator.metrics import ShareCoordinatorSource, StateMetrics
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.reassignment.rows import StatePartitionRows
from kshare_share_coordinator.reassignment.sender import StatePartitionSender
from kshare_share_coordinator.reassignment.state_partition_reassignments import StatePartitionReassignments
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_store import StateStore
from kshare_share_coordinator.state_topic import StateTopicIndex
from kshare_upstream.port import OpenUpstream

WAITING_OPERATIONS_LIMIT = 20_000

_logger = logging.getLogger(__name__)


class ShareCoordinatorNode:
    """A share coordinator; see docs/architecture.md for what every node has."""

    def __init__(
        self,
        *,
        environment: Environment,
        network: Network,
        settings: ShareCoordinatorSettings,
        open_upstream: OpenUpstream | None = None,
    ) -> None:
        """`open_upstream` makes the client of the existing cluster; needed with kshare.engine=kafka."""
        self._open_upstream = open_upstream
        self._environment = environment
        self._network = network
        self._settings = settings
        self._catalog_problem: str | None = None
        self._follower = CatalogFollower(
            network=network,
            coordinator_address=settings.coordinator_address,
            on_view=self._on_view,
            on_problem=self._note_catalog_problem,
        )
        self._store: ChecksummedStore | None = None
        self._state_store: StateStore | None = None
        self._ownership: Ownership | None = None
        self._state_topic_index: StateTopicIndex | None = None
        self._state_topic: StateTopicService | None = None
        self._moves: StatePartitionReassignments | None = None
        self._walk: StateWalk | None = None
        self._confirmed_sync: ConfirmedSync | None = None
        self._mending: StoreMending | None = None
        self.move_metrics = MoveMetrics(lambda: self._ownership.owned_count() if self._ownership else 0)
        self._metrics = StateMetrics()
        self._machine: ShareCoordinatorMachine | None = None
        self._runner: MachineRunner[Operation, Record, Result, None] | None = None
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """The address on which it serves, with the port that was bound."""
        assert self._server is not None, "the share coordinator is not started"
        return self._server.address

    async def start(self) -> None:
        """Opens the store, serves, registers, and returns when the first view of the catalog has arrived."""
        self._store = open_state_store(self._environment)
        self._state_topic_index = StateTopicIndex(store=self._store, now_ms=self._environment.clock.now_ms)
        self._state_store = state_store = self._new_state_store(self._store, self._state_topic_index)
        self._ownership = Ownership(
            node_id=self._settings.node_id,
            lease=self._follower,
            identity=state_store,
            now=asyncio.get_running_loop().time,
        )
        self._state_topic = StateTopicService(
            index=self._state_topic_index,
            ownership=self._ownership,
            delete_retention_ms=self._settings.state_topic_delete_retention_ms,
            prune_interval_ms=self._settings.state_topic_prune_interval_ms,
        )
        self._runner = MachineRunner(
            load=self._load,
            append=self._append,
            act=_no_effects,
            now_ms=self._environment.clock.now_ms,
            queue_limit=WAITING_OPERATIONS_LIMIT,
        )
        self._mending = StoreMending(self._store.stored, report=_logger.warning, on_mended=self._store_mended)
        self._mending.start()
        operations = OperationService(
            submit=self._runner.submit,
            ownership=self._ownership,
            report_corrupt=state_store.report_corrupt,
            damage=state_store.damage,
            answered=self._metrics.answered,
        )
        self._walk = StateWalk(
            store=self._store,
            state_store=state_store,
            ownership=self._ownership,
            submit=self._runner.submit,
            interval_ms=self._settings.cold_partition_snapshot_interval_ms,
        )
        rows = StatePartitionRows(self._store)
        self._moves = StatePartitionReassignments(
            ownership=self._ownership,
            rows=rows,
            barrier=self._runner.barrier,
            forget=self._forget,
            channel=self._follower.channel,
            coordinator=lambda: self._follower.coordinator,
            piece_bytes=self._settings.move_piece_bytes,
            metrics=self.move_metrics,
        )
        sender = StatePartitionSender(
            ownership=self._ownership, rows=rows, barrier=self._runner.barrier, metrics=self.move_metrics
        )
        self._server = await self._network.serve(
            self._settings.listen, [self._service(operations, sender, self._state_topic)]
        )
        await self._follower.start(
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_SHARE_COORDINATOR,
                node_id=self._settings.node_id,
                incarnation=f"{self._environment.random.getrandbits(128):032x}",
                rpc_address=self._server.address,
            )
        )
        self._state_topic.start()
        self._walk.start()
        self._confirmed_sync = ConfirmedSync(self._store)
        self._confirmed_sync.start()

    async def stop(self, grace_ms: int) -> None:
        """Gives calls in flight `grace_ms` to finish, then closes everything; also after a start that failed."""
        if self._server is not None:
            await self._server.stop(grace_ms)
        if self._mending is not None:
            await self._mending.stop()
        if self._moves is not None:
            await self._moves.stop()
        if self._state_topic is not None:
            await self._state_topic.stop()
        if self._walk is not None:
            await self._walk.stop()
        if self._confirmed_sync is not None:
            await self._confirmed_sync.stop()
        await self._follower.stop()
        if self._store is not None:
            self._store.close()

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._metrics.now = metrics.now
        source = ShareCoordinatorSource(
            self._metrics,
            self.move_metrics,
            store=lambda: self._store,
            corrupt_count=lambda: self._state_store.corrupt_count if self._state_store else 0,
        )
        metrics.add_node("share-coordinator", self._settings.node_id, source, self.problems)

    def problems(self) -> list[str]:
        """Why the node is not healthy; empty when it is."""
        if not (
            self._runner and self._state_store and self._ownership and self._moves and self._walk and self._mending
        ):
            return ["the share coordinator is not started"]
        problems = [*self._ownership.problems(), *self._state_store.problems(), *self._moves.problems()]
        problems += [*self._walk.problems(), *self._mending.problems()]
        if self._runner.storage_failure is not None:
            problems.append(f"the newest write failed: {self._runner.storage_failure}")
        if not self._follower.view.version:
            problems.append(
                "the catalog has not been received yet"
                + (f": {self._catalog_problem}" if self._catalog_problem else "")
            )
        return problems

    def _service(
        self, operations: OperationService, sender: StatePartitionSender, state_topic: StateTopicService
    ) -> Service:
        assert self._store is not None and self._state_store is not None and self._ownership is not None
        return Service(
            name=SHARE_COORDINATOR,
            handlers=handlers_of(
                *operation_handlers(operations),
                ListStateSummariesHandler(StateSummaries(self._state_store, self._ownership)),
                TransferStatePartitionHandler(sender),
                BackupService(self._store),
                state_topic,
            ),
            healthy=lambda: not self.problems(),
        )

    def _new_state_store(self, store: ChecksummedStore, state_topic: StateTopicIndex) -> StateStore:
        return StateStore(
            store=store,
            state_partition_of=self._state_partition_of,
            state_topic=state_topic,
            metrics=self._metrics,
        )

    def _load(self) -> ShareCoordinatorMachine:
        assert self._state_store is not None
        self._machine = ShareCoordinatorMachine(
            load=self._state_store.load,
            snapshot_update_records_per_snapshot=self._settings.snapshot_update_records_per_snapshot,
        )
        return self._machine

    def _store_mended(self) -> None:
        assert self._runner is not None
        self._runner.storage_failure = None

    def _append(self, records: Sequence[Record]) -> None:
        assert self._state_store is not None and self._machine is not None
        self._state_store.append(records)
        self._machine.records_are_durable()

    def _state_partition_of(self, key: SharePartitionKey) -> int:
        assert self._ownership is not None
        return self._ownership.state_partition_of(key)

    def _forget(self, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        assert self._machine is not None and self._state_topic_index is not None and self._state_store is not None
        self._machine.forget(is_forgotten)
        self._state_store.forget(is_forgotten)
        self._state_topic_index.forget()

    def _on_view(self, old: CatalogView, new: CatalogView) -> None:
        assert self._moves is not None
        self._catalog_problem = None
        self._moves.on_view(old, new)

    def _note_catalog_problem(self, text: str) -> None:
        self._catalog_problem = text


def _no_effects(effects: Sequence[None]) -> None:
    """Carries out the machine's effects, of which it has none: it only answers."""
