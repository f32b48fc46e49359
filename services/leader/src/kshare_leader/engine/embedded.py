"""The embedded engine: logs in a store on this node's disk, with producers, reassignments and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.leader_target import LeaderTarget
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.dead_letters.unfinished import UnfinishedDeadLetters
from kshare_leader.engine.history import ENABLE, NodeHistory
from kshare_leader.engine.port import EngineSurroundings
from kshare_leader.engine.registered_epoch import RegisteredEpoch
from kshare_leader.handlers.append_dead_letters import AppendDeadLettersHandler
from kshare_leader.handlers.back_up import BackUpHandler
from kshare_leader.handlers.delete_records import DeleteRecordsHandler
from kshare_leader.handlers.describe_log_dirs import DescribeLogDirsHandler
from kshare_leader.handlers.describe_producers import DescribeProducersHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from kshare_leader.handlers.produce import ProduceHandler
from kshare_leader.handlers.transfer_partition import TransferPartitionHandler
from kshare_leader.handlers.write_txn_markers import WriteTxnMarkersHandler
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.history.leader_target import LeaderHistoryTarget
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.log.housekeeping import LogHousekeeping
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.seen_ids import SeenProducerIds
from kshare_leader.log.producers.transaction_verifier import TransactionVerifier
from kshare_leader.log.store_identity import StoreIdentity
from kshare_leader.reassignment.partition_reassignments import PartitionReassignments
from kshare_leader.reassignment.rows import PartitionRows
from kshare_leader.reassignment.sender import PartitionSender
from kshare_rpc.catalog import CatalogView
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.held_memory import HeldCache
from kshare_runtime.large_values.store import ValueFileStore
from kshare_runtime.ports import KeyValueStore
from kshare_runtime.store_mending import StoreMending

STORE_NAME = "leader"
READ_RETRY_S = 10.0
"""How often a partition is tried that could not be opened."""


def with_value_files(store: KeyValueStore) -> KeyValueStore:
    """A leader's store on a disk keeps large batches in files; a store in memory stays as it is."""
    from kshare_runtime.large_values.rocks import RocksValueFileStore
    from kshare_runtime.rocks_store import RocksStore  # loaded with the first store, as by the system's environment

    if not isinstance(store, RocksStore):
        return store
    return RocksValueFileStore(store, family=keys.LOG, prefix_bytes=keys.PARTITION_PREFIX_BYTES)


def rows_below(store: KeyValueStore) -> KeyValueStore:
    """The rows of `with_value_files`, with places instead of the values in files; while no write is under way."""
    return store.rows if isinstance(store, ValueFileStore) else store


def checksummed(store: KeyValueStore) -> ChecksummedRows:
    """A leader's store as all its parts use it. Batches have the producer's checksum, which each read compares."""
    return ChecksummedRows(store, plain_families=[keys.LOG])


class EmbeddedEngine:
    """Implements `port.LeaderEngine`. It opens its store when it is made; StorageFailure."""

    def __init__(self, node: EngineSurroundings) -> None:
        self._node = node
        self._maintenance: asyncio.Task[None] | None = None
        self.store = with_value_files(node.environment.open_store(STORE_NAME))
        self._registered_epoch = RegisteredEpoch(checksummed(self.store), report=node.report)
        try:
            self._make_parts(node)
        except BaseException:
            self.store.close()
            raise

    def _make_parts(self, node: EngineSurroundings) -> None:
        follower, environment, settings = node.follower, node.environment, node.settings
        store, below = checksummed(self.store), rows_below(self.store)
        self._seen_ids = SeenProducerIds(store, rows=below)
        # A new registration tells the older coordinator which epochs and producer ids were given out.
        strays = StrayTopics(store, rows=below, report=node.report, on_older=follower.register_again)
        rows = PartitionRows(store, self._seen_ids, strays, rows=below, report=node.report)
        self.logs = PartitionLogs(
            store=store,
            identity=StoreIdentity(store, settings.node_id, rows=below),
            clock=environment.clock,
            node_id=settings.node_id,
            configs=node.configs,
            has_lease=node.has_lease,
            report=node.report,
            metrics=node.metrics,
            before_open=rows.discard_unfinished_copy,
            seen_ids=self._seen_ids,
            strays=strays,
            rows=below,
        )
        self._end_holding = environment.held_memory.add(
            HeldCache(
                name="leader_tails",
                limit_bytes=self.logs.tails.limit_bytes,
                used_bytes=lambda: self.logs.tails.size_bytes,
                shrink=self.logs.tails.shrink,
            )
        )
        self._mending = StoreMending(self.store, report=node.report, on_mended=self.logs.store_mended)
        self._verifier = TransactionVerifier(
            logs=self.logs,
            coordinator=lambda: follower.coordinator,
            clock=environment.clock,
            configs=node.configs,
        )
        self.dead_letters = DeadLetters(
            unfinished=UnfinishedDeadLetters(store, rows=below),
            target=LeaderTarget(
                view=lambda: follower.view,
                channel=follower.channel,
                coordinator=lambda: follower.coordinator,
                wait_for_version=node.wait_for_version,
                configs=node.configs,
                report=node.report,
            ),
            view=lambda: follower.view,
            clock=environment.clock,
            random=environment.random,
            report=node.report,
            metrics=node.metrics,
        )
        self._history = self._new_history()
        self._moves = PartitionReassignments(
            rows=rows,
            view=lambda: follower.view,
            is_foreign=lambda: self.logs.is_foreign,
            on_rows=self.dead_letters.partition_changed,
            channel=follower.channel,
            coordinator=lambda: follower.coordinator,
            node_id=settings.node_id,
            page_bytes=settings.move_page_bytes,
        )
        self._receiver = AppendDeadLettersHandler(self.logs, store, environment.clock, keeps=strays.keeps)
        self._sender = PartitionSender(
            rows=rows,
            view=lambda: follower.view,
            end_offset=self.logs.end_offset,
            node_id=settings.node_id,
        )

    def _new_history(self) -> NodeHistory | None:
        node, follower = self._node, self._node.follower
        if not node.configs.boolean(ENABLE):
            return None
        target = LeaderHistoryTarget(
            view=lambda: follower.view,
            channel=follower.channel,
            coordinator=lambda: follower.coordinator,
            wait_for_version=node.wait_for_version,
            configs=node.configs,
        )
        return NodeHistory(node, target)

    @property
    def history(self) -> DeliveryHistory | None:
        return None if self._history is None else self._history.events

    def open(self) -> None:
        self._mending.start()

    def handlers(self) -> Sequence[object]:
        return (
            ProduceHandler(self.logs, self._verifier),
            FetchHandler(self.logs, self._node.metrics),
            ListOffsetsHandler(self.logs),
            OffsetForLeaderEpochHandler(self.logs),
            DeleteRecordsHandler(self.logs),
            WriteTxnMarkersHandler(self.logs),
            DescribeProducersHandler(self.logs),
            DescribeLogDirsHandler(self.logs),
            TransferPartitionHandler(self._sender),
            BackUpHandler(self.store),
            self._receiver,
        )

    def highest_leader_epoch(self) -> int:
        return max(self.logs.highest_leader_epoch(), self._registered_epoch.highest())

    def producer_id_end(self) -> int:
        return self._seen_ids.end()

    def on_log_replaced(self, listener: Callable[[TopicPartition], None]) -> None:
        """A log of this engine changes only when it is opened."""

    def on_view(self, old: CatalogView, new: CatalogView, *, are_configs_new: bool) -> None:
        self.logs.on_view(old, new)
        self._note_epoch(new)
        if are_configs_new:
            self.logs.refresh_settings()

    def _note_epoch(self, view: CatalogView) -> None:
        """Also repeated: the identity of the store, or the write of the epoch, may fail at first."""
        if view.cluster_id and not self.logs.is_foreign:
            self._registered_epoch.note(self._node.follower.node_epoch)

    def after_view(self, old: CatalogView, new: CatalogView) -> None:
        self._moves.on_view(old, new)

    def start(self) -> None:
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain(), name="log-maintenance")

    async def stop_background(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self._mending.stop()
        await self._moves.stop()

    async def close_logs(self) -> None:
        if self._history is not None:
            await self._history.stop()
        await self._verifier.stop()
        self.logs.close()

    async def close(self) -> None:
        self._end_holding()
        self.store.close()

    def problems(self) -> list[str]:
        return [*self.logs.problems(), *self._moves.problems(), *self._mending.problems()]

    async def _maintain(self) -> None:
        node = self._node
        housekeeping = LogHousekeeping(
            logs=self.logs, clock=node.environment.clock, configs=node.configs, report=node.report
        )
        await asyncio.gather(
            housekeeping.run(),
            restarted_after_bugs("the removal of expired producers", self._forget_what_is_old),
            restarted_after_bugs("the repetition of failed reads", self._retry_reads),
        )

    async def _retry_reads(self) -> None:
        while True:
            await asyncio.sleep(READ_RETRY_S)
            self.logs.retry_reads()
            self._note_epoch(self._node.follower.view)
            self._moves.retry_if_not_foreign()

    async def _forget_what_is_old(self) -> None:
        node = self._node
        while True:
            await asyncio.sleep(node.settings.producer_expiration_check_interval_ms / 1000)
            await self.logs.retry_and_expire()
            if node.has_lease() and node.follower.view.version:
                self._receiver.remove_unneeded(node.follower.view, node.report)
