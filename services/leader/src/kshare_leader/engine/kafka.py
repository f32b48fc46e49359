"""The kafka engine: logs in an existing cluster, and nothing on this node's disk.

It serves Fetch, for what gateways read ahead, ListOffsets and the share RPCs. Producers and administrators talk to the
cluster. Dead letters are committed there (`dead_letters.cluster_target`), and the delivery history is produced to it
(`history.cluster_target`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.cluster_target import ClusterTarget
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.dead_letters.unfinished import RememberedDeadLetters
from kshare_leader.engine.history import ENABLE, NodeHistory
from kshare_leader.engine.port import EngineSurroundings
from kshare_leader.handlers.back_up import BackUpHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.history.cluster_target import ClusterHistoryTarget
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.upstream.log_fetcher import FetchLimits
from kshare_leader.upstream.upstream_logs import UpstreamLogs
from kshare_rpc.catalog import CatalogView
from kshare_runtime.held_memory import HeldCache
from kshare_upstream.port import OpenUpstream


class KafkaEngine:
    """Implements `port.LeaderEngine`."""

    def __init__(self, node: EngineSurroundings, open_upstream: OpenUpstream) -> None:
        configs = node.configs
        rack = configs["broker.rack"]
        self.store = None
        self._node = node
        self._upstream = open_upstream()
        self.logs = UpstreamLogs(
            upstream=self._upstream,
            node_id=node.settings.node_id,
            limits=FetchLimits(client_rack=rack if isinstance(rack, str) else ""),
            window_limit_bytes=configs.integer("kshare.upstream.window.bytes"),
            partition_window_limit_bytes=configs.integer("kshare.upstream.partition.window.bytes"),
            has_lease=node.has_lease,
            report=node.report,
        )
        follower, environment = node.follower, node.environment
        self._end_holding = environment.held_memory.add(
            HeldCache(
                name="upstream_windows",
                limit_bytes=self.logs.windows.limit_bytes,
                used_bytes=lambda: self.logs.windows.size_bytes,
                shrink=self.logs.windows.shrink_to,
            )
        )
        self.dead_letters = DeadLetters(
            unfinished=RememberedDeadLetters(node.settings.node_id),
            target=ClusterTarget(
                upstream=self._upstream,
                view=lambda: follower.view,
                coordinator=lambda: follower.coordinator,
                wait_for_version=node.wait_for_version,
                configs=configs,
                clock=environment.clock,
                report=node.report,
            ),
            view=lambda: follower.view,
            clock=environment.clock,
            random=environment.random,
            report=node.report,
            metrics=node.metrics,
        )
        self._history = self._new_history()

    def _new_history(self) -> NodeHistory | None:
        node, follower = self._node, self._node.follower
        if not node.configs.boolean(ENABLE):
            return None
        target = ClusterHistoryTarget(
            upstream=self._upstream,
            view=lambda: follower.view,
            coordinator=lambda: follower.coordinator,
            wait_for_version=node.wait_for_version,
            configs=node.configs,
            report=node.report,
        )
        return NodeHistory(node, target)

    @property
    def history(self) -> DeliveryHistory | None:
        return None if self._history is None else self._history.events

    def open(self) -> None:
        self.logs.start()

    def handlers(self) -> Sequence[object]:
        return (FetchHandler(self.logs, self._node.metrics), ListOffsetsHandler(self.logs), BackUpHandler(None))

    def highest_leader_epoch(self) -> int:
        """No epoch is stored here; the share coordinators report those of the states."""
        return 0

    def producer_id_end(self) -> int:
        """Producers have ids of the existing cluster."""
        return 0

    def on_log_replaced(self, listener: Callable[[TopicPartition], None]) -> None:
        self.logs.on_replaced(listener)

    def on_view(self, old: CatalogView, new: CatalogView, *, are_configs_new: bool) -> None:
        self.logs.on_view(old, new)
        for topic_id in old.topics_by_id:
            if topic_id not in new.topics_by_id:
                self._node.metrics.topic_removed(topic_id)

    def after_view(self, old: CatalogView, new: CatalogView) -> None:
        """Nothing is copied when a partition gets another leader."""

    def start(self) -> None:
        """The logs follow the catalog since `open`."""

    async def stop_background(self) -> None:
        """The logs are read until the share-partitions are stopped."""

    async def close_logs(self) -> None:
        if self._history is not None:
            await self._history.stop()
        await self.logs.close()

    async def close(self) -> None:
        self._end_holding()
        await self._upstream.close()

    def problems(self) -> list[str]:
        return self.logs.problems()
