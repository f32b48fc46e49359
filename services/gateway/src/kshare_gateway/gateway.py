"""The objects that all handlers of a gateway share: catalog, calls to leaders, share sessions, cache and tasks.

Every gateway serves every partition, but clients want one broker for each. `ClientBrokers` spreads the partitions of
one leader over as few gateways as possible (one, if there are no more gateways than leaders), so that a ShareFetch
mostly has one leader and can wait there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any
from zlib import crc32

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.bounded_lines import BoundedLog
from kshare_core.work_slices import WorkSlices
from kshare_gateway.catalog.metadata_fragments import MetadataFragments
from kshare_gateway.connections.produce_order import LeaderPlace, ProduceOrder
from kshare_gateway.connections.request_memory import RequestMemory
from kshare_gateway.metrics import GatewayMetrics
from kshare_gateway.quotas.throttling import Throttling
from kshare_gateway.records.awaited_batches import AwaitedBatches
from kshare_gateway.records.batch_cache import BatchCache
from kshare_gateway.records.reassignment import ReassignedPartitions
from kshare_gateway.records.waiting_fetches import FetchPlace, WaitingFetches
from kshare_gateway.security.audit import Audit
from kshare_gateway.settings import GatewaySettings
from kshare_gateway.share.sessions import ShareSessionKey, ShareSessionTable
from kshare_rpc.authorizer import configured_authorizer
from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.coordinator_calls import NotCoordinator
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.network import CallFailed, Method, Payload, Request, Response
from kshare_runtime.ports import Clock
from kshare_servicekit.existing_cluster import ENGINE, KAFKA

CALL_TIMEOUT_MS = 10_000
"""Timeout of calls to leaders and the coordinator, beyond the wait that the request itself asks for."""
MAXIMUM_WAIT_MS = 60_000
"""Longest wait of a request; one that asks for more gets an empty response after this time."""

log = logging.getLogger("kshare_gateway")


class Gateway:
    """The shared state of one gateway."""

    def __init__(self, *, settings: GatewaySettings, incarnation: str, catalog: CatalogFollower, clock: Clock) -> None:
        self.settings = settings
        self.configs: Configs = settings.configs
        self.node_id = settings.node_id
        self.incarnation = incarnation
        self.catalog = catalog
        self.clock = clock
        self.sessions = ShareSessionTable(
            self.configs.integer("group.share.max.share.sessions"),
            partitions_limit=self.configs.integer("kshare.request.max.elements"),
        )
        self.audit = Audit()
        self.throttling = Throttling(self.configs, lambda: self.view.security, loop_ms)
        self.authorizer = configured_authorizer(self.configs, lambda: self.view.security)
        self.cache = BatchCache(
            0 if settings.leaders_are_here else self.configs.integer("kshare.gateway.cache.bytes"),
            epoch_zero_is_any=self.configs.text(ENGINE) != KAFKA,
        )
        self.metrics = GatewayMetrics()
        self.reassignments = ReassignedPartitions(lambda: self.view)
        self.produce_order = ProduceOrder()
        self.awaited_batches = AwaitedBatches()
        self.waiting_fetches = WaitingFetches(incarnation)
        self.lines = BoundedLog(log, lambda: loop_ms() / 1000, _call_later)
        """The log lines that clients can cause any number of."""
        self.slices = WorkSlices()
        self.long_descriptions = asyncio.Semaphore(1)
        self.memory = RequestMemory(
            settings.queued_bytes,
            request_limit_bytes=self.configs.integer("queued.max.request.bytes"),
            stalled_ms=self.configs.integer("kshare.gateway.stalled.connection.ms"),
        )
        self.metadata_fragments = MetadataFragments()
        self._client_brokers: dict[str, ClientBrokers] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def view(self) -> CatalogView:
        return self.catalog.view

    def client_brokers(self, listener: str) -> ClientBrokers:
        """The brokers that clients of a listener are told for partitions, by the newest view."""
        found = self._client_brokers.get(listener)
        if found is None or found.nodes is not self.view.nodes:
            found = self._client_brokers[listener] = ClientBrokers(self.view, listener)
        return found

    def call_leader(
        self,
        address: str,
        method: Method[Request, Response],
        request: Request,
        payload: Payload = (),
        *,
        wait_ms: int = 0,
    ) -> Coroutine[Any, Any, tuple[Response, memoryview]]:
        """The leader's response; CallFailed or a subclass without one."""
        channel = self.catalog.channel(address)
        return channel.call(method, request, payload, timeout_ms=CALL_TIMEOUT_MS + wait_ms)

    async def end_waiting_fetches(self, connection_id: int) -> None:
        """Ends the waits of a closed connection's Fetch; one that cannot be ended is over at its time."""
        request = leader_pb2.FetchRequest(waiter=self.waiting_fetches.waiter(connection_id))

        async def end(place: FetchPlace) -> None:
            try:
                await self.call_leader(place.address, place.method, request)
            except CallFailed as failure:
                self.call_failed(place.method.name, place.address, failure)

        await asyncio.gather(*map(end, self.waiting_fetches.places(connection_id)))

    def call_failed(self, api: str, place: str, failure: CallFailed) -> None:
        """Logs it. Clients choose the time-out of some calls, so they cause any number of these."""
        self.lines.warning(f"call of {api}", "%s at %s failed: %s", api, place, failure)

    async def call_coordinator(
        self, method: Method[Request, Response], request: Request, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Response:
        """The active coordinator's response; CallFailed or a subclass without one."""
        return await self.catalog.coordinators.call_active(method, request, timeout_ms=timeout_ms)

    async def call_group_coordinator(
        self,
        group_id: str,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
        order_key: Hashable = None,
    ) -> Response:
        """The group coordinator's response; KafkaError NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE without one.

        After these errors clients look the coordinator up and retry. `order_key`: see kshare_rpc.coordinator_calls.
        """
        with no_answer_as_kafka_says():
            return await self.catalog.coordinators.call_owner(
                group_id, method, request, timeout_ms=timeout_ms, order_key=order_key
            )

    def leader_of(self, key: TopicPartition) -> tuple[str, ErrorCode]:
        """The address of a partition's leader, or an error code that makes clients refresh their metadata."""
        view = self.view
        topic = view.topics_by_id.get(key.topic_id)
        if topic is None:
            return "", ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= key.partition < len(topic.partitions):
            return "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        address = view.leader_address(key)
        return (address, ErrorCode.NONE) if address else ("", ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leader_place(self, key: TopicPartition) -> tuple[LeaderPlace, ErrorCode]:
        """Where the partition's batches are sent now, or an error code; see `leader_of`."""
        address, code = self.leader_of(key)
        if code:
            return LeaderPlace(address, 0, 0), code
        partition = self.view.partition(key)
        leader_epoch = 0 if partition is None else partition.leader_epoch
        return LeaderPlace(address, leader_epoch, self.catalog.channel(address).streams_lost), code

    @staticmethod
    def code_for_names(code: int) -> int:
        """A leader's error code for a client that named the topic; such clients do not know UNKNOWN_TOPIC_ID."""
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if code == ErrorCode.UNKNOWN_TOPIC_ID else code

    def session_owner(self, key: ShareSessionKey) -> leader_pb2.ShareSessionOwner:
        return leader_pb2.ShareSessionOwner(
            group_id=key.group_id,
            member_id=key.member_id,
            gateway_id=self.node_id,
            gateway_incarnation=self.incarnation,
            broker_number=key.broker_id + 1,
        )

    def record_lock_duration_ms(self, group_id: str) -> int:
        """share.record.lock.duration.ms of a group, else the broker's group.share.record.lock.duration.ms."""
        text = self.view.group_configs.get(group_id, {}).get("share.record.lock.duration.ms")
        return int(text) if text else self.configs.integer("group.share.record.lock.duration.ms")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs work in the background; exceptions are logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._background_done)
        return task

    async def wait_for_background(self, timeout_ms: int) -> None:
        """Waits up to `timeout_ms` for the background work of now."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_ms / 1000)

    async def finish_background(self, grace_ms: int) -> None:
        """Waits up to `grace_ms` for background work, then cancels it."""
        await self.wait_for_background(grace_ms)
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error)


@contextmanager
def no_answer_as_kafka_says() -> Iterator[None]:
    """Turns a call without a response into KafkaError NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE."""
    try:
        yield
    except NotCoordinator as refusal:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, str(refusal)) from refusal
    except CallFailed as failure:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The coordinator did not respond: {failure}"
        ) from failure


def _call_later(delay_s: float, callback: Callable[[], None]) -> None:
    """Without the log fields of the request that is served now, which the line is not about."""
    asyncio.get_running_loop().call_later(delay_s, callback, context=Context())


def loop_ms() -> int:
    """The event loop's steady time."""
    return int(asyncio.get_running_loop().time() * 1000)


class ClientBrokers:
    """The gateways that clients of one listener are told for partitions; made once for each set of nodes.

    The module docstring has the rules.
    """

    def __init__(self, view: CatalogView, listener: str) -> None:
        self.nodes = view.nodes
        self._gateways = [node.node_id for node in view.gateways(listener)]
        leaders = {
            node.node_id: bool(node.rpc_address) for node in view.nodes if node.role == coordinator_pb2.ROLE_LEADER
        }
        self._live_leaders = frozenset(node_id for node_id, has_address in leaders.items() if has_address)
        self._candidates = {
            node_id: self._gateways[rank :: len(leaders)] or self._gateways[rank % len(self._gateways) :][:1]
            for rank, node_id in enumerate(sorted(leaders))
            if self._gateways
        }
        self._candidates_without_leader = self._gateways[:: max(1, len(leaders))]

    def broker(self, topic: coordinator_pb2.Topic, partition: int) -> int:
        """The gateway that clients are told for a partition; -1 without one."""
        if not self._gateways:
            return -1
        candidates = self._candidates.get(topic.partitions[partition].leader_node_id, self._candidates_without_leader)
        if len(candidates) == 1:
            return candidates[0]
        return candidates[crc32(topic.topic_id + partition.to_bytes(4, "big")) % len(candidates)]

    def is_reachable(self, topic: coordinator_pb2.Topic, partition: int) -> bool:
        """Whether the partition's leader is live."""
        return topic.partitions[partition].leader_node_id in self._live_leaders


def bounded_wait_ms(asked_ms: int) -> int:
    return min(max(0, asked_ms), MAXIMUM_WAIT_MS)
