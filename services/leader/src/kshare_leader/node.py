"""The leader node: its engine with the topic logs, share-partitions, catalog and service.

It serves before it is registered, because its address is part of the registration. Until the first view of the catalog
arrives, and whenever its lease may have run out, it answers NOT_LEADER_OR_FOLLOWER for every partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter

from kshare_core.configs import Configs, DynamicConfigs
from kshare_core.leases import held_s
from kshare_leader.engine.port import EngineSurroundings, LeaderEngine
from kshare_leader.metric_reading import LeaderParts, LeaderSource
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.settings import LeaderSettings
from kshare_leader.share.service import ShareService
from kshare_leader.share.stored_progress import StoredProgress
from kshare_rpc.catalog import CatalogView, alter_configs
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LEADER
from kshare_rpc.network import Network, Server, Service
from kshare_rpc.serving import handlers_of
from kshare_runtime.ports import Environment
from kshare_servicekit.existing_cluster import ENGINE, KAFKA
from kshare_servicekit.metrics_server import Metrics
from kshare_upstream.port import OpenUpstream

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
        self._make_engine = _engine_maker(settings.configs, open_upstream)
        self._engine: LeaderEngine | None = None
        self._share: ShareService | None = None
        self._server: Server | None = None
        self._stored_progress: StoredProgress | None = None
        self._metrics = LeaderMetrics()

    @property
    def address(self) -> str:
        """The address that it serves on, with the bound port."""
        assert self._server is not None, "the leader is not started"
        return self._server.address

    async def start(self) -> None:
        """Opens the logs' engine, serves, registers, and returns when the first view was handled."""
        settings = self._settings
        self._engine = engine = self._new_engine()
        engine.open()
        self._share = ShareService(
            logs=engine.logs,
            view=partial(attrgetter("view"), self._follower),  # like a lambda, but without a Python call
            channel=self._follower.channel,
            coordinator=lambda: self._follower.coordinator,
            wait_for_version=self._wait_for_version,
            node_id=settings.node_id,
            configs=settings.configs,
            max_share_partitions=settings.max_share_partitions,
            environment=self._environment,
            report=_logger.warning,
            dead_letters=engine.dead_letters,
            metrics=self._metrics,
            history=engine.history,
            has_lease=self._has_lease,
        )
        engine.on_log_replaced(self._share.log_replaced)
        self._stored_progress = StoredProgress(
            view=lambda: self._follower.view,
            channel=self._follower.channel,
            logs=engine.logs,
            metrics=self._metrics,
            node_id=settings.node_id,
            report=_logger.warning,
            found_archiving=engine.dead_letters.found_archiving,
        )
        self._metrics.on_forgotten = self._stored_progress.wake
        service = Service(
            name=LEADER,
            handlers=handlers_of(*engine.handlers(), self._share),
            healthy=lambda: not self.problems(),
            unread_answers_bytes=settings.queued_bytes,
        )
        self._server = await self._network.serve(settings.listen, [service])
        await self._follower.start(
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_LEADER,
                node_id=settings.node_id,
                incarnation=f"{self._environment.random.getrandbits(128):032x}",
                rpc_address=self._server.address,
            ),
            highest_leader_epoch=engine.highest_leader_epoch,
            producer_id_end=engine.producer_id_end,
        )
        self._stored_progress.start()
        engine.start()

    def _new_engine(self) -> LeaderEngine:
        surroundings = EngineSurroundings(
            environment=self._environment,
            settings=self._settings,
            follower=self._follower,
            has_lease=self._has_lease,
            wait_for_version=self._wait_for_version,
            metrics=self._metrics,
            report=_logger.warning,
        )
        return self._make_engine(surroundings)

    async def stop(self, grace_ms: int) -> None:
        """Ends waiting fetches, answers requests in flight for `grace_ms`, then closes everything.

        Also works after a failed start.
        """
        if self._engine is not None:
            await self._engine.stop_background()
        if self._stored_progress is not None:
            await self._stored_progress.stop()
        if self._share is not None:
            await self._share.stop(grace_ms)
        if self._settings.configs.text(ENGINE) == KAFKA:
            await self._follower.deregister()  # other leaders take the partitions over at once
        if self._engine is not None:
            await self._engine.close_logs()
        if self._server is not None:
            await self._server.stop(grace_ms)
        await self._follower.stop()
        if self._engine is not None:
            await self._engine.close()

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._metrics.now = metrics.now
        source = LeaderSource(self._metrics, self._settings.configs, self._parts)
        metrics.add_node("leader", self._settings.node_id, source, self.problems)

    def _parts(self) -> LeaderParts | None:
        engine = self._engine
        if engine is None or self._share is None:
            return None
        return LeaderParts(
            view=self._follower.view, store=engine.store, logs=engine.logs, directory=self._share.directory
        )

    def problems(self) -> list[str]:
        """Why the node is not healthy; empty if it is."""
        if self._engine is None or self._share is None:
            return ["the leader is not started"]
        problems = [*self._engine.problems(), *self._share.problems()]
        if not self._has_lease():
            why = f": {self._catalog_problem}" if self._catalog_problem else ""
            problems.append(f"the lease has expired; nothing is served until the coordinator responds{why}")
        elif not self._follower.view.version:
            problems.append("the catalog has not been received yet")
        return problems

    def _on_view(self, old: CatalogView, new: CatalogView) -> None:
        # Logs first: share-partitions look up their logs by the new view.
        assert self._engine is not None and self._share is not None
        are_configs_new = alter_configs(self._configs, new, self._settings.node_id)
        self._engine.on_view(old, new, are_configs_new=are_configs_new)
        self._share.on_view(old, new)
        self._engine.after_view(old, new)
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
        return asyncio.get_running_loop().time() < lease_renewed_at + held_s(self._follower.lease_ms)

    def _note_catalog_problem(self, text: str) -> None:
        if text != self._catalog_problem:
            _logger.warning("calls to the coordinator fail: %s", text)
        self._catalog_problem = text


def _engine_maker(configs: Configs, open_upstream: OpenUpstream | None) -> Callable[[EngineSurroundings], LeaderEngine]:
    """The class of the engine that the configs name; a process loads one of them."""
    if configs.text(ENGINE) != KAFKA:
        from kshare_leader.engine.embedded import EmbeddedEngine

        return EmbeddedEngine
    assert open_upstream is not None, f"{ENGINE}={KAFKA} needs a client of the existing cluster"
    from kshare_leader.engine.kafka import KafkaEngine

    return partial(KafkaEngine, open_upstream=open_upstream)
