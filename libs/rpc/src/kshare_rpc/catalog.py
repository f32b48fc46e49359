"""The catalog as every role but the coordinator sees it: a view that is always whole, and the task that follows it.

`CatalogFollower` registers the node, then keeps one WatchCatalog call waiting at the coordinator; each answer makes the
next `CatalogView` and renews the node's lease. Lookups never leave the process. When the coordinator is away the last
view stays; when it says that the registration is gone, the node registers again (a new epoch) and takes a full view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from kshare_core.configs import DynamicConfigs
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, TopicPartition, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import REGISTER_NODE, WATCH_CATALOG
from kshare_rpc.network import CallFailed, Channel, Network

WATCH_WAIT_MS = 3_000
CALL_TIMEOUT_MS = 5_000
RETRY_INTERVAL_MS = 250


@dataclass(frozen=True, slots=True)
class CatalogView:
    """One version of the catalog. Immutable; a new version is a new view."""

    version: int = 0
    cluster_id: str = ""
    topics_by_id: Mapping[bytes, coordinator_pb2.Topic] = field(default_factory=dict)
    topics_by_name: Mapping[str, coordinator_pb2.Topic] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What administrators gave to one broker, by its id, or to all of them (the empty id)."""
    nodes: tuple[coordinator_pb2.Node, ...] = ()
    state_partition_owners: Mapping[int, int] = field(default_factory=dict)
    state_partition_moves: Mapping[int, coordinator_pb2.StatePartitionOwner] = field(default_factory=dict)
    """Those that move: their owner answers for them no more, and their new node not yet."""
    state_partition_owner_epochs: Mapping[int, int] = field(default_factory=dict)
    """The catalog's epoch at the newest change of each state partition's owner or move."""
    state_partition_count: int = 0

    def partition(self, key: TopicPartition) -> coordinator_pb2.Topic.Partition | None:
        """The partition, or None where the topic or the partition does not exist."""
        topic = self.topics_by_id.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def node(self, role: coordinator_pb2.Role.ValueType, node_id: int) -> coordinator_pb2.Node | None:
        return next((node for node in self.nodes if node.role == role and node.node_id == node_id), None)

    def gateways(self) -> list[coordinator_pb2.Node]:
        """The brokers that clients see, by node id."""
        found = [node for node in self.nodes if node.role == coordinator_pb2.ROLE_GATEWAY]
        return sorted(found, key=lambda node: node.node_id)

    def share_coordinator_address(self, key: SharePartitionKey) -> str | None:
        """Where the state of a share-partition lives; None while no live share coordinator owns it."""
        if self.state_partition_count == 0:
            return None
        owner = self.state_partition_owners.get(state_partition_of(key, self.state_partition_count))
        node = None if owner is None else self.node(coordinator_pb2.ROLE_SHARE_COORDINATOR, owner)
        return node.rpc_address if node else None

    def leader_address(self, key: TopicPartition) -> str | None:
        """Where the partition's leader is; None while it is unknown."""
        partition = self.partition(key)
        node = partition and self.node(coordinator_pb2.ROLE_LEADER, partition.leader_node_id)
        return node.rpc_address if node else None


def next_view(view: CatalogView, answer: coordinator_pb2.WatchCatalogResponse) -> CatalogView:
    """The view after an answer of the coordinator."""
    if answer.version == view.version and not answer.full:
        return view
    topics = {} if answer.full else dict(view.topics_by_id)
    for topic in answer.topics:
        topics[topic.topic_id] = topic
    for topic_id in answer.deleted_topic_ids:
        topics.pop(topic_id, None)
    groups = {} if answer.full else dict(view.group_configs)
    for group in answer.group_configs:
        groups[group.group_id] = {entry.name: entry.value for entry in group.configs}
    brokers = {} if answer.full else dict(view.broker_configs)
    for broker in answer.broker_configs:
        brokers[broker.broker_id] = {entry.name: entry.value for entry in broker.configs}
    changed = replace(
        view,
        version=answer.version,
        cluster_id=answer.cluster_id,
        topics_by_id=topics,
        topics_by_name={topic.name: topic for topic in topics.values()},
        group_configs=groups,
        broker_configs=brokers,
    )
    if answer.full or answer.nodes_changed:
        owners = {owner.state_partition: owner.node_id for owner in answer.state_partition_owners}
        changed = replace(
            changed,
            nodes=tuple(answer.nodes),
            state_partition_owners=owners,
            state_partition_moves={
                owner.state_partition: owner for owner in answer.state_partition_owners if owner.is_moving
            },
            state_partition_owner_epochs={
                owner.state_partition: owner.owner_epoch for owner in answer.state_partition_owners
            },
            state_partition_count=answer.state_partition_count,
        )
    return changed


def alter_configs(configs: DynamicConfigs, view: CatalogView, broker_id: int) -> bool:
    """Gives a broker the values that administrators gave it; whether that changed anything."""
    of_all, of_one = view.broker_configs.get("", {}), view.broker_configs.get(str(broker_id), {})
    return configs.alter(of_all, of_one)


class RegistrationRefused(Exception):
    """The coordinator does not take this node; the text says why."""


class CatalogFollower:
    """Registers a node and follows the catalog; see the module's text.

    `on_view(old, new)` is called for each new view, in order, before anyone else sees it.
    """

    def __init__(
        self,
        *,
        network: Network,
        coordinator_address: str,
        on_view: Callable[[CatalogView, CatalogView], None] = lambda old, new: None,
        on_problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._network = network
        self._on_view = on_view
        self._on_problem = on_problem
        self._channels: dict[str, Channel] = {}
        self._coordinator_address = coordinator_address
        self._node: coordinator_pb2.Node | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.view = CatalogView()
        self.node_epoch = -1
        self.heard_at: float | None = None
        """Loop time of the coordinator's last answer; a lease counts from the time its call was sent."""
        self.lease_ms = 0

    @property
    def coordinator(self) -> Channel:
        return self.channel(self._coordinator_address)

    def channel(self, address: str) -> Channel:
        """The channel to an address; one for each address, kept."""
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        return self._channels[address]

    async def start(self, node: coordinator_pb2.Node) -> None:
        """Registers the node and returns when the first view is here."""
        self._node = node
        while not await self._attempt(self._register):
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
        while not await self._attempt(self._watch_once):
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="catalog-follower")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    async def wait_for_version(self, version: int, *, timeout_ms: int) -> bool:
        """Whether the view reached `version` in time; after a change, so that its maker sees it here too."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self.view.version < version:
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), remaining)
            except TimeoutError:
                return self.view.version >= version
        return True

    async def _follow(self) -> None:
        while True:
            try:
                followed = await self._attempt(self._watch_once)
            except Exception as error:  # a bug in on_view must not end the lease without a word; the view stays old
                self._on_problem(f"the catalog's next version was not taken: {type(error).__name__}: {error}")
                followed = False
            if not followed:
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except (CallFailed, RegistrationRefused) as problem:
            self._on_problem(str(problem))
            return False
        return True

    async def _register(self) -> None:
        assert self._node is not None
        sent_at = asyncio.get_running_loop().time()
        request = coordinator_pb2.RegisterNodeRequest(node=self._node)
        answer, _ = await self.coordinator.call(REGISTER_NODE, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code:
            raise RegistrationRefused(answer.error_message)
        self.node_epoch = answer.node_epoch
        self.lease_ms = answer.lease_ms
        self.heard_at = sent_at
        self.view = replace(self.view, version=0)

    async def _watch_once(self) -> None:
        assert self._node is not None
        sent_at = asyncio.get_running_loop().time()
        request = coordinator_pb2.WatchCatalogRequest(
            role=self._node.role,
            node_id=self._node.node_id,
            incarnation=self._node.incarnation,
            after_version=self.view.version,
            max_wait_ms=WATCH_WAIT_MS,
        )
        timeout_ms = WATCH_WAIT_MS + CALL_TIMEOUT_MS
        answer, _ = await self.coordinator.call(WATCH_CATALOG, request, timeout_ms=timeout_ms)
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._on_problem(answer.error_message)
            await self._register()
            return
        self.heard_at = sent_at
        old, new = self.view, next_view(self.view, answer)
        if new is not old:
            self._on_view(old, new)
            self.view = new
            self._changed.set()
