"""Several CoordinatorNodes that share their metadata, on simulated hosts and virtual time, and a client of theirs.

The metadata is in the model of etcd, or in an existing cluster in memory.

`SeveralCoordinators` can kill, freeze, cut off and stop coordinators. Whenever one of them answers for a group or for
the catalog, it is checked that no other one could have answered for the same at that moment (`violations`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from kshare_coordinator.core import Core
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS, MetadataStore
from kshare_coordinator.metadata.upstream.store import UpstreamMetadataStore
from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed, Method, Network, Request, Response, Service
from kshare_runtime.ports import Environment
from support.coordinator.cluster import FakeShareCoordinator
from support.metadata.faulty_etcd import FaultyEtcd
from support.metadata.memory_etcd import MemoryEtcd
from support.simulation.connections import ClientListeners
from support.simulation.history import History
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.network import SimulatedFabric, SimulatedNetwork
from support.upstream.faulty_upstream import FaultyUpstream
from support.upstream.memory_upstream import MemoryUpstream

Answer = TypeVar("Answer")

LEASE_MS = 2_000
CALL_TIMEOUT_MS = 3_000
ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
ACTIVE_METHODS: tuple[Method[Any, Any], ...] = (
    methods.REGISTER_NODE,
    methods.WATCH_CATALOG,
    methods.CREATE_TOPICS,
    methods.DELETE_TOPICS,
    methods.END_TXN,
    methods.ADD_OFFSETS_TO_TXN,
)
GROUP_METHODS: tuple[Method[Any, Any], ...] = (
    methods.OFFSET_COMMIT,
    methods.OFFSET_FETCH,
    methods.TXN_OFFSET_COMMIT,
    methods.SHARE_GROUP_HEARTBEAT,
    methods.JOIN_GROUP,
    methods.SYNC_GROUP,
    methods.HEARTBEAT,
)


def addresses(count: int) -> list[str]:
    return [f"coordinator-{number}:1" for number in range(1, count + 1)]


class SeveralCoordinators:
    """See the module's text. `run` plays `main` on a loop of its own."""

    def __init__(
        self, seed: object = 0, *, count: int = 3, configs: Mapping[str, str] | None = None, store: str = "etcd"
    ) -> None:
        """`store` is etcd or kafka."""
        self.random = random.Random(f"{seed}/several")
        self.loop = VirtualLoop(time_limit=2_000.0, step_limit=5_000_000)
        self.fabric = SimulatedFabric(self.loop, random.Random(f"{seed}/network"), History())
        self.store = store
        self.etcd = MemoryEtcd()
        self.kafka = MemoryUpstream()
        self._kafka_is_paused = False
        self.ways: dict[str, FaultyEtcd | FaultyUpstream] = {}
        """The newest way to the metadata of each coordinator."""
        self.configs = Configs(PROCESS_CONFIGS, {"kshare.node.lease.ms": "4000", **(configs or {})})
        self.count = count
        self.hosts = [
            SimulatedHost(
                f"coordinator-{number}",
                seed=str(seed),
                fabric=self.fabric,
                listeners=ClientListeners(self.fabric),
                build=self._build(number),
            )
            for number in range(1, count + 1)
        ]
        self.violations: list[str] = []
        self.answers = 0
        """Of coordinators, that were checked."""
        self.fabric.taps.append(self._tap)

    def _build(self, number: int) -> Callable[[Environment, Network, SimulatedHost], Node]:
        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            return CoordinatorNode(
                environment=environment,
                network=network,
                settings=CoordinatorSettings(
                    node_id=number, listen=f"{host.name}:1", coordinator_address="", configs=self.configs
                ),
                open_store=lambda: self._open_store(host.name),
            )

        return build

    def _open_store(self, name: str) -> MetadataStore:
        if self.store == "etcd":
            etcd = self.ways[name] = FaultyEtcd(self.etcd.client(time_limit_ms=LEASE_MS // 4))
            return EtcdMetadataStore(etcd, prefix="/kshare/", lease_ms=LEASE_MS)
        kafka = self.ways[name] = FaultyUpstream(self.kafka, lambda: self._kafka_is_paused)
        now_ms = lambda: int(self.loop.now_s * 1000)  # noqa: E731
        return UpstreamMetadataStore(kafka, topic_prefix="__kshare_", lease_ms=LEASE_MS, now_ms=now_ms)

    def pause_metadata(self) -> None:
        """Nothing that keeps the metadata answers, until `resume_metadata`."""
        self.etcd.pause()
        self._kafka_is_paused = True

    def resume_metadata(self) -> None:
        self.etcd.resume()
        self._kafka_is_paused = False

    async def restart_metadata(self) -> None:
        """Its data stays; connections do not."""
        self.etcd.restart()
        ways = [way for way in self.ways.values() if isinstance(way, FaultyUpstream) and not way.unavailable]
        for way in ways:
            way.unavailable = True
        await asyncio.sleep(0.01)
        for way in ways:
            way.unavailable = False

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run(main())
        assert self.violations == []
        assert self.fabric.bugs == []
        assert self.loop.problems == []

    async def start(self) -> None:
        await asyncio.gather(*(host.start() for host in self.hosts))
        await self.settled()

    async def settled(self, *, within_s: float = 30.0) -> None:
        """Until every partition has an owner that answers for it."""
        deadline = self.loop.now_s + within_s
        while not all(self.owner(partition) for partition in range(CATALOG, GROUP_PARTITIONS)):
            assert self.loop.now_s < deadline, f"without owner: {self._unowned()}"
            await asyncio.sleep(0.05)

    def _unowned(self) -> list[int]:
        return [partition for partition in range(CATALOG, GROUP_PARTITIONS) if self.owner(partition) is None]

    def cores(self) -> dict[str, Core]:
        """Of hosts that run, frozen ones too."""
        found: dict[str, Core] = {}
        for host in self.hosts:
            if isinstance(host.node, CoordinatorNode) and host.node.core is not None:
                found[host.name] = host.node.core
        return found

    def owners(self, partition: int) -> list[str]:
        """Each by its own clock."""
        return [
            name
            for name, core in self.cores().items()
            if self.host(name).by_its_clock(lambda core=core: core.owns(partition))  # type: ignore[misc]
        ]

    def owner(self, partition: int) -> str | None:
        owners = self.owners(partition)
        return owners[0] if owners else None

    def host(self, name: str) -> SimulatedHost:
        return next(host for host in self.hosts if host.name == name)

    def owner_of_group(self, group_id: str) -> SimulatedHost:
        name = self.owner(partition_of_group(group_id))
        assert name is not None
        return self.host(name)

    def active(self) -> SimulatedHost:
        name = self.owner(CATALOG)
        assert name is not None
        return self.host(name)

    def group_of(self, host: SimulatedHost, prefix: str = "group") -> str:
        """A group id whose owner is the host now."""
        names = (f"{prefix}-{number}" for number in range(10_000))
        return next(name for name in names if self.owner(partition_of_group(name)) == host.name)

    def client(self, name: str = "client") -> Client:
        return Client(self, name)

    def _tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        if answer is None or not target.startswith("coordinator-"):
            return
        partition = _partition(method, request)
        if partition is None or _code(answer) in ELSEWHERE:
            return
        self.answers += 1
        others = [name for name in self.owners(partition) if name != target]
        if others:
            text = f"{target} answers {method.path} for partition {partition}, which {others} own"
            self.violations.append(f"at {self.loop.now_s:.3f} s {text}")


def _partition(method: Method[Any, Any], request: Any) -> int | None:
    if method in ACTIVE_METHODS:
        return CATALOG
    return partition_of_group(request.group_id) if method in GROUP_METHODS else None


def _code(answer: Any) -> int:
    """Of the whole, or of the first part."""
    code = int(getattr(answer, "error_code", 0))
    results = getattr(answer, "results", None)
    if not code and results and hasattr(results[0], "error_code"):
        return int(results[0].error_code)
    return code


class Client:
    """A node that follows the catalog from any coordinator and calls owners, as a gateway does."""

    def __init__(self, several: SeveralCoordinators, name: str, role: pb.Role.ValueType = pb.ROLE_GATEWAY) -> None:
        self._role = role
        self.name = name
        self.incarnation = Incarnation(name, 1)
        self.network = SimulatedNetwork(several.fabric, self.incarnation)
        self.problems: list[str] = []
        self.follower = CatalogFollower(
            network=self.network,
            coordinator_address=",".join(addresses(several.count)),
            on_problem=self.problems.append,
        )

    async def start(self, node_id: int = 1) -> Client:
        node = pb.Node(role=self._role, node_id=node_id, incarnation=self.name, rpc_address=f"{self.name}:1")
        if self._role == pb.ROLE_GATEWAY:
            node.advertised_host, node.advertised_port = self.name, 9092
        await self.follower.start(node)
        return self

    async def serve(self, service: Service) -> None:
        await self.network.serve(f"{self.name}:1", [service])

    async def active(self, method: Method[Request, Response], request: Request) -> Response:
        return await self.follower.coordinators.call_active(method, request, timeout_ms=CALL_TIMEOUT_MS)

    async def owner(self, group_id: str, method: Method[Request, Response], request: Request) -> Response:
        return await self.follower.coordinators.call_owner(group_id, method, request, timeout_ms=CALL_TIMEOUT_MS)

    async def at(self, address: str, method: Method[Request, Response], request: Request) -> Response:
        """The call to one coordinator, whether or not it is the right one."""
        answer, _ = await self.network.connect(address).call(method, request, timeout_ms=CALL_TIMEOUT_MS)
        return answer

    async def patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The first answer that is not about who should be asked, or that did not come; for what may be done twice."""
        while True:
            try:
                answer = await ask()
            except CallFailed as failure:
                self.problems.append(f"{failure}")
            else:
                code = answer if isinstance(answer, ErrorCode) else getattr(answer, "error_code", ErrorCode.NONE)
                if code not in ELSEWHERE:
                    return answer
            await asyncio.sleep(0.1)

    async def create_topic(self, name: str, partitions: int = 1) -> ErrorCode:
        topic = pb.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
        answer = await self.active(methods.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
        return ErrorCode(answer.error_code or answer.topics[0].error_code)

    async def delete_topic(self, name: str) -> ErrorCode:
        reference = pb.DeleteTopicsRequest.TopicReference(name=name)
        answer = await self.active(methods.DELETE_TOPICS, pb.DeleteTopicsRequest(topics=[reference]))
        return ErrorCode(answer.error_code or answer.results[0].error_code)

    async def commit(self, group_id: str, topic: str, offset: int, partition: int = 0) -> ErrorCode:
        request = pb.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, api_version=9)
        request.offsets.add(topic_name=topic, partition=partition, committed_offset=offset)
        answer = await self.owner(group_id, methods.OFFSET_COMMIT, request)
        return ErrorCode(answer.error_code or answer.results[0].error_code)

    async def fetch(self, group_id: str, topic: str, partition: int = 0, *, stable: bool = True) -> int | ErrorCode:
        """The committed offset, -1 for none; an ErrorCode where it cannot be said."""
        request = pb.OffsetFetchRequest(group_id=group_id, member_epoch=-1, require_stable=stable)
        request.topics.add(topic_name=topic, partitions=[partition])
        answer = await self.owner(group_id, methods.OFFSET_FETCH, request)
        code = answer.error_code or answer.results[0].error_code
        return ErrorCode(code) if code else answer.results[0].offset.committed_offset

    async def heartbeat(
        self, group_id: str, member_id: str, member_epoch: int, names: Sequence[str] | None = None
    ) -> pb.ShareGroupHeartbeatResponse:
        request = pb.ShareGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            has_subscribed_topic_names=names is not None,
            subscribed_topic_names=names or [],
        )
        return await self.owner(group_id, methods.SHARE_GROUP_HEARTBEAT, request)

    async def begin(self, transactional_id: str) -> tuple[int, int]:
        """Producer id and epoch."""
        request = pb.InitProducerIdRequest(
            has_transactional_id=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        while True:
            answer = await self.active(methods.INIT_PRODUCER_ID, request)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                assert not answer.error_code, answer
                return answer.producer_id, answer.producer_epoch
            await asyncio.sleep(0.05)

    async def add_offsets(self, transactional_id: str, producer: tuple[int, int], group_id: str) -> ErrorCode:
        request = pb.AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group_id
        )
        return ErrorCode((await self.active(methods.ADD_OFFSETS_TO_TXN, request)).error_code)

    async def transactional_commit(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        group_id: str,
        topic: str,
        offset: int,
        *,
        adds: bool = True,
    ) -> ErrorCode:
        request = pb.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group_id,
            generation_id=-1,
            add_to_transaction=adds,
        )
        request.offsets.add(topic_name=topic, partition=0, committed_offset=offset)
        answer = await self.owner(group_id, methods.TXN_OFFSET_COMMIT, request)
        return ErrorCode(answer.error_code or answer.results[0].error_code)

    async def end(
        self, transactional_id: str, producer: tuple[int, int], *, committed: bool = True, bumps: bool = True
    ) -> pb.EndTxnResponse:
        request = pb.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
            bumps_epoch=bumps,
        )
        return await self.active(methods.END_TXN, request)


class ShareCoordinatorHost(Client):
    """A share coordinator that keeps what it is told, registered as a real one is."""

    def __init__(self, several: SeveralCoordinators, number: int = 1) -> None:
        super().__init__(several, f"share-coordinator-{number}", pb.ROLE_SHARE_COORDINATOR)
        self.fake = FakeShareCoordinator()

    async def start(self, node_id: int = 1) -> ShareCoordinatorHost:
        await self.serve(self.fake.service())
        await super().start(node_id)
        return self
