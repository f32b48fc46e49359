"""The leader node: its store, topic logs, share-partitions, catalog and service.

It serves before it is registered, because its address is part of the registration. Until the first view of the catalog
arrives, and whenever its lease may have run out, it answers NOT_LEADER_OR_FOLLOWER for every partition.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from operator import attrgetter

from kshare_core.configs import DynamicConfigs
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.handlers.append_dead_letters import AppendDeadLettersHandler
from kshare_leader.handlers.delete_records import DeleteRecordsHandler
from kshare_leader.handlers.describe_log_dirs import DescribeLogDirsHandler
from kshare_leader.handlers.describe_producers import DescribeProducersHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.handlers.produce import ProduceHandler
from kshare_leader.handlers.transfer_partition import TransferPartitionHandler
from kshare_leader.handlers.write_txn_markers import WriteTxnMarkersHandler
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.history.publisher import HistoryPublisher
from kshare_leader.log.housekeeping import LogHousekeeping
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.transaction_verifier import TransactionVerifier
from kshare_leader.metric_reading import LeaderParts, LeaderSource
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.reassignment.partition_reassignments import PartitionReassignments
from kshare_leader.reassignment.rows import PartitionRows
from kshare_leader.reassignment.sender import PartitionSender
from kshare_leader.settings import LeaderSettings
from kshare_leader.share.service import ShareService
from kshare_leader.share.stored_progress import StoredProgress
from kshare_rpc.catalog import CatalogView, alter_configs
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LEADER
from kshare_rpc.network import Network, Server, Service
from kshare_rpc.serving import handlers_of
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_runtime.store_mending import StoreMending
from kshare_servicekit.metrics_server import Metrics
from kshare_upstream.port import OpenUpstream

STORE_NAME = "leader"

_logger = logging.getLogger(__name__)


class LeaderNode:
    """A leader node; docs/architecture.md describes the parts of every node."""

    def __init__(
        self,
        *,
        environment: Environment,
        network: Network,
        settings: LeaderSettings,
        open_upstream: OpenUpstream | None = None,
    ) -> None:
        """`open_upstream` makes the client of the existing cluster; needed with kshare.engine=kafka."""
        self._open_upstream = open_upstream
        self._environment = environment
        self._network = network
        self._configs = DynamicConfigs(settings.configs)
        self._settings = replace(settings, configs=self._configs)
        self._catalog_problem: str | None = None
        self._follower = CatalogFollower(
            network=network,
            coordinator_address=settings.coordinator_address,
            on_view=self._on_view,
            on_problem=self._note_catalog_problem,
        )
        self._store: KeyValueStore | None = None
        self._logs: PartitionLogs | None = None
        self._verifier: TransactionVerifier | None = None
        self._share: ShareService | None = None
        self._publisher: HistoryPublisher | None = None
        self._moves: PartitionReassignments | None = None
        self._server: Server | None = None
        self._mending: StoreMending | None = None
        self._stored_progress: StoredProgress | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._metrics = LeaderMetrics()

    @property
    def address(self) -> str:
        """The address that it serves on, with the bound port."""
        assert self._server is not None, "the leader is not started"
        return self._server.address

    async def start(self) -> None:
        """Opens the store, serves, registers, and returns when the logs placed here are open."""
        settings = self._settings
        self._store = self._environment.open_store(STORE_NAME)
        rows = PartitionRows(self._store)
        self._logs = PartitionLogs(
            store=self._store,
            clock=self._environment.clock,
            node_id=settings.node_id,
            configs=settings.configs,
            has_lease=self._has_lease,
            report=_logger.warning,
            metrics=self._metrics,
            before_open=rows.discard_unfinished_copy,
        )
        self._mending = StoreMending(self._store, report=_logger.warning, on_mended=self._logs.store_mended)
        self._mending.start()
        self._verifier = TransactionVerifier(
            logs=self._logs,
            coordinator=lambda: self._follower.coordinator,
            clock=self._environment.clock,
            configs=settings.configs,
        )
        dead_letters = self._new_dead_letters(self._store)
        self._share = ShareService(
            logs=self._logs,
            view=partial(attrgetter("view"), self._follower),  # like a lambda, but without a Python call
            channel=self._follower.channel,
            coordinator=lambda: self._follower.coordinator,
            wait_for_version=self._wait_for_version,
            node_id=settings.node_id,
            configs=settings.configs,
            environment=self._environment,
            report=_logger.warning,
            dead_letters=dead_letters,
            metrics=self._metrics,
            history=self._new_history(),
        )
        self._stored_progress = self._new_stored_progress(self._logs)
        self._moves = self._new_moves(self._logs, rows, dead_letters)
        receiver = AppendDeadLettersHandler(self._logs, self._store, self._environment.clock)
        sender = PartitionSender(
            rows=rows,
            view=lambda: self._follower.view,
            end_offset=self._logs.end_offset,
            node_id=settings.node_id,
        )
        service = self._service(self._logs, self._share, receiver, sender)
        self._server = await self._network.serve(settings.listen, [service])
        await self._follower.start(
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_LEADER,
                node_id=settings.node_id,
                incarnation=f"{self._environment.random.getrandbits(128):032x}",
                rpc_address=self._server.address,
            ),
            highest_leader_epoch=self._logs.highest_leader_epoch,
        )
        self._stored_progress.start()
        maintenance = self._maintain(self._logs, receiver)
        self._maintenance = asyncio.get_running_loop().create_task(maintenance, name="log-maintenance")

    async def stop(self, grace_ms: int) -> None:
        """Ends waiting fetches, answers requests in flight for `grace_ms`, then closes everything.

        Also works after a failed start.
        """
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        for part in (self._mending, self._stored_progress, self._moves):
            if part is not None:
                await part.stop()
        if self._share is not None:
            await self._share.stop(grace_ms)
        if self._publisher is not None:
            await self._publisher.stop()
        if self._verifier is not None:
            await self._verifier.stop()
        if self._logs is not None:
            self._logs.close()
        if self._server is not None:
            await self._server.stop(grace_ms)
        await self._follower.stop()
        if self._store is not None:
            self._store.close()

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._metrics.now = metrics.now
        source = LeaderSource(self._metrics, self._settings.configs, self._parts)
        metrics.add_node("leader", self._settings.node_id, source, self.problems)

    def _parts(self) -> LeaderParts | None:
        if self._store is None or self._logs is None or self._share is None:
            return None
        return LeaderParts(
            view=self._follower.view, store=self._store, logs=self._logs, directory=self._share.directory
        )

    def problems(self) -> list[str]:
        """Why the node is not healthy; empty if it is."""
        if self._logs is None or self._share is None or self._moves is None or self._mending is None:
            return ["the leader is not started"]
        problems = [*self._logs.problems(), *self._share.problems(), *self._moves.problems()]
        problems += self._mending.problems()
        if not self._has_lease():
            why = f": {self._catalog_problem}" if self._catalog_problem else ""
            problems.append(f"the lease has expired; nothing is served until the coordinator responds{why}")
        elif not self._follower.view.version:
            problems.append("the catalog has not been received yet")
        return problems

    def _new_dead_letters(self, store: KeyValueStore) -> DeadLetters:
        follower = self._follower
        return DeadLetters(
            store=store,
            view=lambda: follower.view,
            channel=follower.channel,
            coordinator=lambda: follower.coordinator,
            wait_for_version=self._wait_for_version,
            configs=self._settings.configs,
            clock=self._environment.clock,
            random=self._environment.random,
            report=_logger.warning,
            metrics=self._metrics,
        )

    def _new_history(self) -> DeliveryHistory | None:
        if not self._settings.configs.boolean("kshare.delivery.history.enable"):
            return None
        follower = self._follower
        self._publisher = HistoryPublisher(
            view=lambda: follower.view,
            channel=follower.channel,
            coordinator=lambda: follower.coordinator,
            wait_for_version=self._wait_for_version,
            configs=self._settings.configs,
            clock=self._environment.clock,
            random=self._environment.random,
            report=_logger.warning,
            counts=self._metrics.history,
        )
        return DeliveryHistory(
            buffer=self._publisher.buffer,
            view=lambda: follower.view,
            node_id=self._settings.node_id,
            node_epoch=lambda: follower.node_epoch,
            wall_now_ms=self._environment.clock.now_ms,
        )

    def _new_stored_progress(self, logs: PartitionLogs) -> StoredProgress:
        stored_progress = StoredProgress(
            view=lambda: self._follower.view,
            channel=self._follower.channel,
            logs=logs,
            metrics=self._metrics,
            node_id=self._settings.node_id,
            report=_logger.warning,
        )
        self._metrics.on_forgotten = stored_progress.wake
        return stored_progress

    def _new_moves(self, logs: PartitionLogs, rows: PartitionRows, dead_letters: DeadLetters) -> PartitionReassignments:
        return PartitionReassignments(
            rows=rows,
            view=lambda: self._follower.view,
            is_foreign=lambda: logs.is_foreign,
            on_rows=dead_letters.partition_changed,
            channel=self._follower.channel,
            coordinator=lambda: self._follower.coordinator,
            node_id=self._settings.node_id,
            page_bytes=self._settings.move_page_bytes,
        )

    def _service(
        self, logs: PartitionLogs, share: ShareService, receiver: AppendDeadLettersHandler, sender: PartitionSender
    ) -> Service:
        assert self._verifier is not None
        return Service(
            name=LEADER,
            handlers=handlers_of(
                ProduceHandler(logs, self._verifier),
                FetchHandler(logs, self._metrics),
                ListOffsetsHandler(logs),
                DeleteRecordsHandler(logs),
                WriteTxnMarkersHandler(logs),
                DescribeProducersHandler(logs),
                DescribeLogDirsHandler(logs),
                TransferPartitionHandler(sender),
                receiver,
                share,
            ),
            healthy=lambda: not self.problems(),
            unread_answers_bytes=self._settings.queued_bytes,
        )

    def _on_view(self, old: CatalogView, new: CatalogView) -> None:
        # Logs first: share-partitions look up their logs by the new view.
        assert self._logs is not None and self._share is not None and self._moves is not None
        are_configs_new = alter_configs(self._configs, new, self._settings.node_id)
        self._logs.on_view(old, new)
        if are_configs_new:
            self._logs.refresh_settings()
        self._share.on_view(old, new)
        self._moves.on_view(old, new)
        if self._stored_progress is not None:
            self._stored_progress.on_view(old, new)
        self._catalog_problem = None

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        """Whether this leader's view of the catalog reached the version in time."""
        return await self._follower.wait_for_version(version, timeout_ms=timeout_ms)

    def _has_lease(self) -> bool:
        """Whether the coordinator heard this node recently enough that no other node may lead its partitions."""
        lease_renewed_at = self._follower.lease_renewed_at
        if lease_renewed_at is None:
            return False
        return asyncio.get_running_loop().time() < lease_renewed_at + self._follower.lease_ms / 1000

    async def _maintain(self, logs: PartitionLogs, receiver: AppendDeadLettersHandler) -> None:
        housekeeping = LogHousekeeping(
            logs=logs, clock=self._environment.clock, configs=self._settings.configs, report=_logger.warning
        )
        await asyncio.gather(housekeeping.run(), self._forget_what_is_old(logs, receiver))

    async def _forget_what_is_old(self, logs: PartitionLogs, receiver: AppendDeadLettersHandler) -> None:
        while True:
            await asyncio.sleep(self._settings.producer_expiration_check_interval_ms / 1000)
            logs.retry_and_expire()
            if self._has_lease() and self._follower.view.version:
                receiver.remove_unneeded(self._follower.view, _logger.warning)

    def _note_catalog_problem(self, text: str) -> None:
        if text != self._catalog_problem:
            _logger.warning("calls to the coordinator fail: %s", text)
        self._catalog_problem = text
