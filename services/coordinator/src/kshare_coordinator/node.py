"""The coordinator role as one object: service, machine, leases, sessions, and the calls to share coordinators.

The machine decides, and this shell carries out its effects:
- Leases of nodes and sessions of members are deadlines on the event loop's clock, not records. When the coordinator
  starts, every node gets a fresh lease and every member a full session timeout, as no heartbeat could arrive before.
- WatchCatalog calls that wait are woken after a change.
- `group_state` does the work that groups have pending at share coordinators and leaders.
- `lost_state` looks for share-partitions that have no state after a start of their share coordinator.
- A target assignment that has to wait for its interval is a deadline, too.
- `transaction_markers` sends the outcomes of transactions to leaders.

If several coordinators share the metadata, this work starts for a partition when the partition is gained, as after a
start, and ends when it is lost. ReconcileTopics brings the groups of this coordinator in line with topics that another
coordinator changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from kshare_coordinator.classic_group_calls import ClassicGroupCalls
from kshare_coordinator.consumer_group_timers import ConsumerGroupTimers
from kshare_coordinator.core import Core
from kshare_coordinator.deadlines import Deadlines
from kshare_coordinator.group_state import GroupStateKeeper
from kshare_coordinator.handlers.back_up import BackUpHandler
from kshare_coordinator.handlers.catalog import CatalogHandlers
from kshare_coordinator.handlers.classic_groups import ClassicGroupHandlers
from kshare_coordinator.handlers.consumer_groups import ConsumerGroupHandlers
from kshare_coordinator.handlers.groups import GroupHandlers
from kshare_coordinator.handlers.offsets import OffsetHandlers
from kshare_coordinator.handlers.partition_moves import PartitionMoveHandlers
from kshare_coordinator.handlers.producer_ids import ProducerIdHandlers
from kshare_coordinator.handlers.security import SecurityHandlers
from kshare_coordinator.handlers.share_group_administration import ShareGroupAdministrationHandlers
from kshare_coordinator.handlers.share_group_offsets import ShareGroupOffsetHandlers
from kshare_coordinator.handlers.state_partitions import StatePartitionHandlers
from kshare_coordinator.handlers.topic_look_up import nothing_to_look_up
from kshare_coordinator.handlers.transactions import TransactionHandlers
from kshare_coordinator.lost_state import LostStateSearch
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.cluster_health import problems_of
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.groups.classic.timers import ClassicTimerCancelled, ClassicTimerSet, WaitingCallAnswered
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.share.given_up_state import GivenUpState
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.metadata_partitions import partition_of_group, partition_of_row
from kshare_coordinator.machine.state import CoordinatorState, NodeId
from kshare_coordinator.metadata.opening import open_metadata_store
from kshare_coordinator.metadata.port import CoordinatorMember, MetadataStore
from kshare_coordinator.metrics import CoordinatorMetrics, CoordinatorSource
from kshare_coordinator.mirror.topic_mirror import TopicMirror
from kshare_coordinator.offsets_expiry import OffsetsExpiry
from kshare_coordinator.settings import CoordinatorSettings
from kshare_coordinator.transaction_markers import TransactionMarkers
from kshare_coordinator.transaction_owners import TransactionOwners
from kshare_coordinator.transaction_timeouts import TransactionTimeouts
from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import topic_id_text
from kshare_rpc.generated import methods
from kshare_rpc.network import Network, Server, Service
from kshare_rpc.serving import handlers_of
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_runtime.store_mending import StoreMending
from kshare_servicekit.metrics_server import Metrics
from kshare_upstream.port import OpenUpstream

STORAGE_RETRY_MS = 1_000
"""Delay before an expiry is retried whose write failed."""

log = logging.getLogger(__name__)


class CoordinatorNode:
    """The whole role, as a process, `--single-process` and the simulation build it.

    `open_store` opens the metadata store; None opens the one that the configs name. `open_upstream` makes the client of
    the existing cluster; needed with kshare.engine=kafka and with kshare.metadata.store=kafka.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        network: Network,
        settings: CoordinatorSettings,
        open_store: Callable[[], MetadataStore] | None = None,
        open_upstream: OpenUpstream | None = None,
    ) -> None:
        self._open_upstream = open_upstream
        self._open_store = open_store
        self._environment = environment
        self._network = network
        self._settings = settings
        self._lease_ms = settings.configs.integer("kshare.node.lease.ms")
        self._groups = GroupSettings(settings.configs)
        self._consumer_groups = ConsumerGroupSettings(settings.configs)
        self._leases: Deadlines[tuple[NodeId, str]] = Deadlines(self._leases_expired)
        self._sessions: Deadlines[tuple[str, str]] = Deadlines(self._sessions_expired)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._catalog_tasks: dict[asyncio.Task[None], None] = {}
        """Tasks that run while this is the active coordinator."""
        self._is_reconciling = False
        self._reconciled_with = (-1, 0)
        """The version of topics that groups were last reconciled with; see the function `_reconciled_with`."""
        self._metrics = CoordinatorMetrics()
        self._own_store: KeyValueStore | None = None
        """The metadata store, if it is this node's own."""
        self._mending: StoreMending | None = None
        self._core: Core | None = None
        self._classic: ClassicGroupCalls | None = None
        self._keeper: GroupStateKeeper | None = None
        self._markers: TransactionMarkers | None = None
        self._owners: TransactionOwners | None = None
        self._consumer_timers: ConsumerGroupTimers | None = None
        self._share_group_offsets: ShareGroupOffsetHandlers | None = None
        self._lost_state: LostStateSearch | None = None
        self._mirror: TopicMirror | None = None
        """The mirror of the existing cluster's topics; None with the embedded engine."""
        self._server: Server | None = None

    @property
    def core(self) -> Core | None:
        """The node's core; None while the node is not started."""
        return self._core

    @property
    def address(self) -> str:
        """The address on which the node listens, with the port that was bound."""
        assert self._server is not None, "the node is not started"
        return self._server.address

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._metrics.now = metrics.now
        source = CoordinatorSource(self._metrics, core=lambda: self._core, store=lambda: self._own_store)
        metrics.add_node("coordinator", self._settings.node_id, source, self.problems)

    def _open_own_store(self, name: str) -> KeyValueStore:
        self._own_store = self._environment.open_store(name)
        self._mending = StoreMending(self._own_store, report=log.warning, on_mended=self._store_mended)
        self._mending.start()
        return self._own_store

    def _store_mended(self) -> None:
        assert self._core is not None
        self._core.store_mended()

    def problems(self) -> list[str]:
        """Problems of this coordinator; an empty list means healthy."""
        if self._core is None:
            return ["the coordinator is not started"]
        parts = (self._core, self._mending, self._mirror)
        return [problem for part in parts if part is not None for problem in part.problems()]

    def cluster_problems(self) -> list[str]:
        """Problems that keep the cluster from serving; the coordinator itself may be healthy."""
        try:
            return problems_of(self._core.state) if self._core is not None else []
        except StorageFailure as failure:
            return [str(failure)]

    async def start(self) -> None:
        """Loads the store and serves; StorageFailure if the store cannot be read or written."""
        core = self._build()
        incarnation = topic_id_text(self._environment.random.randbytes(16)) if core.is_shared else ""
        if core.is_shared:
            await self._serve(core)
            await core.start(self._member(incarnation, self._advertised_address()))
            self._start(self._expiry(core).run())
            self._start_background_work()
            return
        await core.start(self._member(incarnation, self._settings.coordinator_address))
        await core.submit(self._start_command())
        self._resume_groups(core.state, core.state.share_groups, core.state.consumer_groups)
        self._resume_catalog(core.state)
        assert self._classic is not None
        await self._classic.resume()
        self._start(self._expiry(core).run())
        for work in self._transaction_timeouts(core):
            self._start(work)
        await self._serve(core)
        member = self._member(incarnation, self._advertised_address())
        core.members_changed([member], core.owners)
        self._start_background_work()

    def _start_background_work(self) -> None:
        if self._lost_state is not None:
            self._lost_state.start()
        if self._mirror is not None:
            self._start(self._mirror.run())

    def _build(self) -> Core:
        configs = self._settings.configs
        if self._open_store is not None:
            store = self._open_store()
        else:
            environment = replace(self._environment, open_store=self._open_own_store)
            store = open_metadata_store(environment, configs, partition_of_row, open_upstream=self._open_upstream)
        core = self._core = Core(
            store=store,
            clock=self._environment.clock,
            configs=configs,
            act=self._act,
            listener=self,
            broker_id=self._settings.node_id,
            metrics=self._metrics,
        )
        owners = self._owners = TransactionOwners(core, self._network)
        self._classic = ClassicGroupCalls(core)
        self._keeper = GroupStateKeeper(
            network=self._network,
            state=lambda: core.state,
            complete=self._complete_group_state,
            retry_interval_ms=configs.integer("group.share.initialize.retry.interval.ms"),
            sender=self._environment.random.randbytes(16),
        )
        self._markers = TransactionMarkers(
            network=self._network,
            state=lambda: core.state,
            complete=core.submit,
            next_epoch=core.submit,
            tell=owners.tell,
        )
        self._consumer_timers = ConsumerGroupTimers(core, self._consumer_groups, self._sessions.set)
        self._mirror = self._new_mirror(core)
        if Engine.of(configs).data_is_local:  # the topic of an existing cluster is not restored from a backup
            self._lost_state = LostStateSearch(
                network=self._network, state=lambda: core.state, begin_anew=lambda command: core.submit(command)
            )
        return core

    def _new_mirror(self, core: Core) -> TopicMirror | None:
        configs = self._settings.configs
        if Engine.of(configs).data_is_local:
            return None
        assert self._open_upstream is not None, "kshare.engine=kafka needs the client of the existing cluster"
        return TopicMirror(
            upstream=self._open_upstream(),
            core=core,
            network=self._network,
            configs=configs,
            source=self._environment.random,
        )

    async def _serve(self, core: Core) -> None:
        self._server = await self._network.serve(self._settings.listen, [self._service(core)])

    def _member(self, incarnation: str, address: str) -> CoordinatorMember:
        return CoordinatorMember(self._settings.node_id, incarnation, address)

    def _advertised_address(self) -> str:
        """The address for other nodes: the configured one, or the one on which the node listens."""
        configured = self._settings.coordinator_address
        return self.address if not configured or configured.endswith(":0") else configured

    def _start_command(self) -> commands.Start:
        return commands.Start(
            start_id=self._environment.random.randbytes(8).hex(),
            cluster_id=topic_id_text(self._environment.random.randbytes(16)),
            state_partition_count=self._settings.configs.integer("share.coordinator.state.topic.num.partitions"),
        )

    def _expiry(self, core: Core) -> OffsetsExpiry:
        return OffsetsExpiry(core, self._settings.configs.integer("offsets.retention.check.interval.ms"))

    def _transaction_timeouts(self, core: Core) -> list[Coroutine[None, None, None]]:
        timeouts = TransactionTimeouts(core, self._environment.clock, self._settings.configs)
        return [timeouts.abort_timed_out(), timeouts.expire_transactional_ids()]

    def _resume_catalog(self, state: CoordinatorState) -> None:
        """Gives all nodes fresh leases and continues interrupted work of the catalog."""
        assert self._markers is not None
        for node_id, node in sorted(state.nodes.items()):
            self._leases.set((node_id, node.incarnation), self._lease_ms)
        for transactional_id, transaction in sorted(state.transactions.items()):
            if transaction.state.is_ending:
                self._markers.send(transactional_id)

    def _resume_groups(
        self, state: CoordinatorState, share_group_ids: Iterable[str], consumer_group_ids: Iterable[str]
    ) -> None:
        """Gives all members fresh sessions and continues interrupted work of their groups."""
        assert self._keeper is not None
        assert self._consumer_timers is not None
        for group_id in sorted(share_group_ids):
            group = state.share_groups[group_id]
            for member_id in sorted(group.members):
                self._sessions.set((group_id, member_id), self._groups.session_timeout_ms(state, group_id))
            if group.partitions.is_pending:
                self._keeper.work(group_id)
        self._consumer_timers.resume(consumer_group_ids)

    # Partitions gained and lost, if several coordinators share the metadata

    def catalog_gained(self) -> None:
        self._start(self._begin_catalog(), self._catalog_tasks)

    async def _begin_catalog(self) -> None:
        core = self._core
        assert core is not None
        while True:
            try:
                await core.submit(self._start_command())
                break
            except (KafkaError, StorageFailure) as failure:
                log.error("the catalog could not be initialized, retrying: %s", failure)
                await asyncio.sleep(STORAGE_RETRY_MS / 1000)
        core.open_catalog()
        self._resume_catalog(core.state)
        for work in self._transaction_timeouts(core):
            self._start(work, self._catalog_tasks)
        log.info("this coordinator is now active")

    def catalog_lost(self) -> None:
        assert self._markers is not None
        for task in self._catalog_tasks:
            task.cancel()
        self._leases.stop()
        self._markers.forget()
        log.warning("this coordinator is no longer active")

    def catalog_followed(self, *, nodes: bool) -> None:
        assert self._core is not None
        assert self._keeper is not None
        self._core.wake_watchers()
        if nodes:
            self._nodes_changed()
        if _reconciled_with(self._core.state) != self._reconciled_with and not self._is_reconciling:
            self._is_reconciling = True
            self._start(self._reconcile_all())

    async def _reconcile_all(self) -> None:
        """Reconciles all groups of this coordinator until they match the newest topics."""
        core = self._core
        assert core is not None
        try:
            while (newest := _reconciled_with(core.state)) != self._reconciled_with:
                if await self._try_until_done(commands.ReconcileTopics(), lambda: True):
                    self._reconciled_with = newest
        finally:
            self._is_reconciling = False

    def groups_gained(self, partition: int) -> None:
        core = self._core
        assert core is not None
        assert self._owners is not None
        self._owners.groups_gained()
        state = core.state
        share_group_ids = [group_id for group_id in state.share_groups if partition_of_group(group_id) == partition]
        if self._lost_state is not None:
            self._lost_state.groups_gained(share_group_ids)
        self._resume_groups(
            state,
            share_group_ids,
            [group_id for group_id in state.consumer_groups if partition_of_group(group_id) == partition],
        )
        self._start(self._resume_partition(partition))

    async def _resume_partition(self, partition: int) -> None:
        core = self._core
        assert core is not None
        for command in (
            commands.ResumeClassicGroups(group_partition=partition),
            commands.ReconcileTopics(group_partition=partition),
        ):
            await self._try_until_done(command, lambda: core.state.has_group_partition(partition))

    async def _try_until_done(self, command: Command[Any], is_wanted: Callable[[], bool]) -> bool:
        core = self._core
        assert core is not None
        while is_wanted():
            try:
                await core.submit(command)
                return True
            except (KafkaError, StorageFailure) as failure:
                log.error("%s could not be written, retrying: %s", type(command).__name__, failure)
                await asyncio.sleep(STORAGE_RETRY_MS / 1000)
        return False

    def groups_lost(self, partition: int) -> None:
        assert self._keeper is not None
        assert self._classic is not None
        assert self._consumer_timers is not None

        def is_meant(group_id: str) -> bool:
            return partition_of_group(group_id) == partition

        self._sessions.forget(lambda session: is_meant(session[0]))
        self._keeper.forget(is_meant)
        self._consumer_timers.forget(is_meant)
        self._classic.forget(is_meant)

    def _service(self, core: Core) -> Service:
        look_up = nothing_to_look_up if self._mirror is None else self._mirror.look_up
        producer_ids = ProducerIdHandlers(core)
        catalog = CatalogHandlers(
            core, self._leases, self._lease_ms, self._environment.random, look_up, producer_ids.skip_below
        )
        groups = GroupHandlers(core, look_up)
        consumer_groups = ConsumerGroupHandlers(core, self._consumer_groups, self._environment.random)
        assert self._owners is not None
        offsets = OffsetHandlers(core, self._owners)
        share_group_offsets = self._share_group_offsets = ShareGroupOffsetHandlers(core, self._network, look_up)
        assert self._keeper is not None
        administration = ShareGroupAdministrationHandlers(core, self._keeper, look_up)
        state_partitions = StatePartitionHandlers(core)
        partition_moves = PartitionMoveHandlers(core)
        assert self._classic is not None
        classic = ClassicGroupHandlers(core, self._classic, self._environment.random, administration.finish_deletion)
        transactions = TransactionHandlers(core, self._environment.clock, self._owners)
        security = SecurityHandlers(core)
        handlers = handlers_of(
            catalog,
            groups,
            consumer_groups,
            offsets,
            share_group_offsets,
            administration,
            state_partitions,
            partition_moves,
            classic,
            producer_ids,
            transactions,
            security,
            BackUpHandler(lambda: self._own_store),
        )
        return Service(
            methods.COORDINATOR,
            handlers,
            healthy=lambda: not self.problems(),
            cluster_problems=self.cluster_problems,
        )

    async def stop(self, grace_ms: int) -> None:
        """Refuses new calls, gives calls in flight `grace_ms` to finish, and closes the store."""
        self._leases.stop()
        self._sessions.stop()
        if self._core is not None:
            self._core.end_watches()
        if self._classic is not None:
            self._classic.begin_stop()
        if self._server is not None:
            await self._server.stop(grace_ms)
        parts = (self._lost_state, self._keeper, self._markers, self._consumer_timers, self._classic, self._mending)
        for part in parts:
            if part is not None:
                await part.stop()
        for caller in (self._share_group_offsets, self._owners, self._mirror):
            if caller is not None:
                await caller.close()
        tasks = [*self._tasks, *self._catalog_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leases.stop()
        self._sessions.stop()
        if self._core is not None:
            await self._core.stop()
            self._core = None

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        assert self._keeper is not None
        assert self._markers is not None
        assert self._classic is not None
        assert self._consumer_timers is not None
        match effect:
            case commands.SessionRenewed(group_id=group_id, member_id=member_id, session_timeout_ms=timeout_ms):
                self._sessions.set((group_id, member_id), timeout_ms)
            case commands.SessionEnded(group_id=group_id, member_id=member_id):
                self._sessions.remove((group_id, member_id))
            case commands.ExpressionRefused(group_id=group_id, regex=regex, reason=reason):
                log.warning(
                    "Group %s keeps the topics that the stored expression %.200r found, and gets no new ones: %.500s."
                    " Subscribe its members to a smaller expression",
                    group_id,
                    regex,
                    reason,
                )
            case commands.RevocationBegun() | commands.RevocationEnded():
                self._consumer_timers.act(effect)
            case commands.GroupStatePending(group_id=group_id, is_news=is_news):
                self._keeper.work(group_id, is_news=is_news)
            case commands.LeaseStarted(role=role, node_id=node_id, incarnation=incarnation):
                self._leases.set(((role, node_id), incarnation), self._lease_ms)
            case commands.TransactionEnding(transactional_id=transactional_id):
                self._markers.send(transactional_id)
            case commands.CatalogChanged(nodes=nodes):
                self._catalog_changed(nodes)
            case ClassicTimerSet() | ClassicTimerCancelled() | WaitingCallAnswered():
                self._classic.carry_out(effect)
            case _:
                assert_never(effect)

    def _catalog_changed(self, nodes: bool) -> None:
        assert self._core is not None
        assert self._keeper is not None
        assert self._markers is not None
        self._core.wake_watchers()
        self._markers.catalog_changed()
        if nodes:
            self._nodes_changed()

    def _nodes_changed(self) -> None:
        assert self._keeper is not None
        self._keeper.nodes_changed()
        if self._lost_state is not None:
            self._lost_state.nodes_changed()

    def _leases_expired(self, keys: list[tuple[NodeId, str]]) -> None:
        for key in keys:
            (role, node_id), incarnation = key
            self._start(self._expire_node(commands.ExpireNode(role=role, node_id=node_id, incarnation=incarnation)))

    async def _expire_node(self, command: commands.ExpireNode) -> None:
        try:
            assert self._core is not None
            if await self._core.submit(command):
                log.warning(
                    "the lease of node %d of role %d expired, it did not heartbeat for %d ms",
                    command.node_id,
                    command.role,
                    self._lease_ms,
                )
                for problem in self.cluster_problems():
                    log.warning("the cluster cannot serve everything: %s", problem)
        except (KafkaError, StorageFailure) as failure:
            log.error("the expiry of node %d's lease could not be written, retrying: %s", command.node_id, failure)
            if self._core is not None and self._core.has_catalog():
                self._leases.set(((command.role, command.node_id), command.incarnation), STORAGE_RETRY_MS)

    def _sessions_expired(self, keys: list[tuple[str, str]]) -> None:
        for group_id, member_id in keys:
            self._start(self._expire_member(commands.ExpireMember(group_id=group_id, member_id=member_id)))

    async def _expire_member(self, command: commands.ExpireMember) -> None:
        try:
            assert self._core is not None
            await self._core.earlier_decided()
            if (command.group_id, command.member_id) in self._sessions:  # its heartbeat waited for a write until now
                return
            await self._submit(command)
            log.info(
                "group %s: member %s is removed, it did not heartbeat within its session timeout",
                command.group_id,
                command.member_id,
            )
        except (KafkaError, StorageFailure) as failure:
            log.error(
                "group %s: the removal of member %s could not be written, retrying: %s",
                command.group_id,
                command.member_id,
                failure,
            )
            if self._core is not None and self._core.keeps_group(command.group_id):
                self._sessions.set((command.group_id, command.member_id), STORAGE_RETRY_MS)

    async def _complete_group_state(self, command: commands.CompleteGroupState) -> None:
        await self._submit(command)

    async def _submit(self, command: Command[None]) -> None:
        assert self._core is not None
        await self._core.submit(command)

    def _start(self, work: Coroutine[None, None, None], tasks: dict[asyncio.Task[None], None] | None = None) -> None:
        group = self._tasks if tasks is None else tasks
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        group[task] = None
        task.add_done_callback(lambda done: group.pop(done, None))


def _reconciled_with(state: CoordinatorState) -> tuple[int, int]:
    """The generation of topics, and the newest epoch at which a share coordinator was given up."""
    return state.topics_generation, GivenUpState.of(state.state_partitions, state.state_partition_count).newest
