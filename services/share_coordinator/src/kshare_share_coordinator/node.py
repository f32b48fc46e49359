"""The whole share coordinator: catalog, states and service of one node.

Where states are kept is the engine's: `state_log.embedded` or `state_log.upstream`. Operations of one turn of the event
loop are made durable together, then answered.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import SHARE_COORDINATOR
from kshare_rpc.network import Network, Server, Service
from kshare_rpc.serving import handlers_of
from kshare_runtime.ports import Environment
from kshare_servicekit.metrics_server import Metrics
from kshare_share_coordinator.handlers.list_state_summaries import ListStateSummariesHandler, StateSummaries
from kshare_share_coordinator.handlers.operation_service import OperationService, operation_handlers
from kshare_share_coordinator.metrics import ShareCoordinatorSource, StateMetrics
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_log.port import StateEngine
from kshare_upstream.port import OpenUpstream


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
        self._engine: StateEngine | None = None
        self.move_metrics = MoveMetrics(lambda: self._engine.ownership.owned_count() if self._engine else 0)
        self._metrics = StateMetrics()
        self._make_engine = self._engine_maker()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """The address on which it serves, with the port that was bound."""
        assert self._server is not None, "the share coordinator is not started"
        return self._server.address

    @property
    def engine(self) -> StateEngine:
        """The engine of the node, which is started."""
        assert self._engine is not None, "the share coordinator is not started"
        return self._engine

    async def start(self) -> None:
        """Opens the engine, serves, registers, and returns when the first view of the catalog has arrived."""
        self._engine = engine = self._make_engine()
        operations = OperationService(
            submit=engine.submit,
            ownership=engine.ownership,
            report_corrupt=engine.report_corrupt,
            refusal=engine.key_refusal,
            answered=self._metrics.answered,
        )
        service = Service(
            name=SHARE_COORDINATOR,
            handlers=handlers_of(
                *operation_handlers(operations),
                ListStateSummariesHandler(StateSummaries(engine, engine.ownership)),
                *engine.handlers(),
            ),
            healthy=lambda: not self.problems(),
        )
        self._server = await self._network.serve(self._settings.listen, [service])
        await self._follower.start(
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_SHARE_COORDINATOR,
                node_id=self._settings.node_id,
                incarnation=f"{self._environment.random.getrandbits(128):032x}",
                rpc_address=self._server.address,
            ),
            highest_leader_epoch=lambda: engine.highest_epoch,
        )
        engine.start()

    async def stop(self, grace_ms: int) -> None:
        """Gives calls in flight `grace_ms` to finish, then closes everything; also after a start that failed."""
        if self._server is not None:
            await self._server.stop(grace_ms)
        if self._engine is not None:
            await self._engine.stop()
            if not self._engine.keeps_data_here:
                await self._follower.deregister()  # others take the state partitions over at once
        await self._follower.stop()
        if self._engine is not None:
            await self._engine.close()

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._metrics.now = metrics.now
        source = ShareCoordinatorSource(self._metrics, self.move_metrics, engine=lambda: self._engine)
        metrics.add_node("share-coordinator", self._settings.node_id, source, self.problems)

    def problems(self) -> list[str]:
        """Why the node is not healthy; empty when it is."""
        if self._engine is None:
            return ["the share coordinator is not started"]
        problems = [*self._engine.ownership.problems(), *self._engine.problems()]
        if not self._follower.view.version:
            problems.append(
                "the catalog has not been received yet"
                + (f": {self._catalog_problem}" if self._catalog_problem else "")
            )
        return problems

    def _engine_maker(self) -> Callable[[], StateEngine]:
        """A maker of the engine that the configs name; a process loads one of them."""
        if not self._settings.has_kafka_engine:
            from kshare_share_coordinator.state_log.embedded import EmbeddedStates

            return lambda: EmbeddedStates(
                environment=self._environment,
                follower=self._follower,
                settings=self._settings,
                metrics=self._metrics,
                move_metrics=self.move_metrics,
            )
        open_upstream = self._open_upstream
        assert open_upstream is not None, "kshare.engine=kafka needs the client of an existing cluster"
        from kshare_share_coordinator.state_log.upstream import UpstreamStates

        return lambda: UpstreamStates(
            upstream=open_upstream(),
            environment=self._environment,
            follower=self._follower,
            settings=self._settings,
            metrics=self._metrics,
        )

    def _on_view(self, old: CatalogView, new: CatalogView) -> None:
        self._catalog_problem = None
        self.engine.on_view(old, new)

    def _note_catalog_problem(self, text: str) -> None:
        self._catalog_problem = text
