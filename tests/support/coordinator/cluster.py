"""A CoordinatorNode on virtual time, with a scripted share coordinator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Method, Request, Response, Service
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_upstream.port import OpenUpstream
from support.simulation.loop import VirtualLoop

ADDRESS = "coordinator:1"
Key = tuple[str, bytes, int]


def run_virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test on a loop whose time is virtual; exceptions that nobody caught fail it."""
    loop = VirtualLoop(time_limit=1000.0, step_limit=500_000)
    loop.run(main())
    assert loop.problems == []


class LoopClock:
    """Wall time that is the loop's time, ahead of it by `ahead_ms`."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.ahead_ms


class FakeShareCoordinator:
    """Keeps state epochs and start offsets; refusals are answered first, one for each call.

    `refusals` are those of Initialize and Delete, `summary_refusals` those of ReadShareGroupStateSummary.
    """

    def __init__(self) -> None:
        self.state: dict[Key, tuple[int, int]] = {}
        self.initialized: list[tuple[float, share_pb.InitializeShareGroupStateRequest]] = []
        self.deleted: list[share_pb.DeleteShareGroupStateRequest] = []
        self.refusals: list[ErrorCode] = []
        self.summary_refusals: list[ErrorCode] = []
        self.summary_codes: dict[int, ErrorCode] = {}
        """Refusals of single partitions, always."""
        self.summaries: list[share_pb.ReadShareGroupStateSummaryRequest] = []
        self.delay_ms = 0

    def service(self) -> Service:
        return Service(
            methods.SHARE_COORDINATOR,
            {
                methods.INITIALIZE_SHARE_GROUP_STATE: self.initialize,
                methods.DELETE_SHARE_GROUP_STATE: self.delete,
                methods.READ_SHARE_GROUP_STATE_SUMMARY: self.summary,
            },
        )

    def _refusal(self) -> int:
        return self.refusals.pop(0) if self.refusals else ErrorCode.NONE

    async def initialize(
        self, request: share_pb.InitializeShareGroupStateRequest, payload: memoryview
    ) -> share_pb.InitializeShareGroupStateResponse:
        self.initialized.append((asyncio.get_running_loop().time(), request))
        refusal = self._refusal()
        await asyncio.sleep(self.delay_ms / 1000)
        answer = share_pb.InitializeShareGroupStateResponse()
        for entry in request.partitions:
            key = (request.group_id, entry.topic_id, entry.partition)
            code = refusal
            if code == ErrorCode.NONE and key in self.state and self.state[key][0] > entry.state_epoch:
                code = ErrorCode.FENCED_STATE_EPOCH
            if code == ErrorCode.NONE:
                self.state[key] = (entry.state_epoch, entry.start_offset)
            answer.results.add(topic_id=entry.topic_id, partition=entry.partition, error_code=code)
        return answer

    async def delete(
        self, request: share_pb.DeleteShareGroupStateRequest, payload: memoryview
    ) -> share_pb.DeleteShareGroupStateResponse:
        self.deleted.append(request)
        refusal = self._refusal()
        answer = share_pb.DeleteShareGroupStateResponse()
        for entry in request.partitions:
            if refusal == ErrorCode.NONE:
                self.state.pop((request.group_id, entry.topic_id, entry.partition), None)
            answer.results.add(topic_id=entry.topic_id, partition=entry.partition, error_code=refusal)
        return answer

    async def summary(
        self, request: share_pb.ReadShareGroupStateSummaryRequest, payload: memoryview
    ) -> share_pb.ReadShareGroupStateSummaryResponse:
        self.summaries.append(request)
        assert all(entry.owner_epoch > 0 for entry in request.partitions), "a reader names the owner epoch"
        answer = share_pb.ReadShareGroupStateSummaryResponse()
        code = self.summary_refusals.pop(0) if self.summary_refusals else ErrorCode.NONE
        for entry in request.partitions:
            key = (request.group_id, entry.topic_id, entry.partition)
            state_epoch, start_offset = self.state.get(key, (0, -1))
            answer.results.add(
                topic_id=entry.topic_id,
                partition=entry.partition,
                state_epoch=state_epoch,
                start_offset=start_offset,
                error_code=self.summary_codes.get(entry.partition, code),
            )
        return answer


class CoordinatorCluster:
    """One coordinator that can crash and start again on its disk, and share coordinators."""

    def __init__(self, configs: Mapping[str, str] | None = None, *, open_upstream: OpenUpstream | None = None) -> None:
        self.network = InProcessNetwork()
        self._open_upstream = open_upstream
        self.disk = MemoryDisk()
        self.configs = Configs(PROCESS_CONFIGS, configs or {})
        self.open_store: Callable[[str], KeyValueStore] = self.disk.open_store
        self.starts = 0
        self.clock = LoopClock()
        self.share_coordinators: dict[int, FakeShareCoordinator] = {}
        self.node = self._node()
        self.channel = self.network.connect(ADDRESS)

    def _node(self) -> CoordinatorNode:
        self.starts += 1
        return CoordinatorNode(
            environment=Environment(
                clock=self.clock, random=random.Random(self.starts), open_store=lambda name: self.open_store(name)
            ),
            network=self.network,
            settings=CoordinatorSettings(node_id=1, listen=ADDRESS, coordinator_address=ADDRESS, configs=self.configs),
            open_upstream=self._open_upstream,
        )

    async def start(self) -> None:
        await self.node.start()

    async def restart(self) -> None:
        await self.node.stop(0)
        self.node = self._node()
        await self.node.start()

    async def add_share_coordinator(self, node_id: int) -> FakeShareCoordinator:
        fake = self.share_coordinators[node_id] = FakeShareCoordinator()
        await self.network.serve(f"share:{node_id}", [fake.service()])
        await self.register(pb.ROLE_SHARE_COORDINATOR, node_id, f"share:{node_id}")
        return fake

    async def register(
        self, role: pb.Role.ValueType, node_id: int, rpc_address: str, incarnation: str = "one"
    ) -> pb.RegisterNodeResponse:
        node = pb.Node(role=role, node_id=node_id, incarnation=incarnation, rpc_address=rpc_address)
        return await self.call(methods.REGISTER_NODE, pb.RegisterNodeRequest(node=node))

    async def watch(
        self, role: pb.Role.ValueType, node_id: int, after_version: int, max_wait_ms: int, incarnation: str = "one"
    ) -> pb.WatchCatalogResponse:
        request = pb.WatchCatalogRequest(
            role=role, node_id=node_id, incarnation=incarnation, after_version=after_version, max_wait_ms=max_wait_ms
        )
        return await self.call(methods.WATCH_CATALOG, request)

    async def create_topic(self, name: str, partitions: int = 1) -> pb.CreateTopicsResponse.CreatableTopicResult:
        topic = pb.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
        answer = await self.call(methods.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
        return answer.topics[0]

    async def delete_topic(self, name: str) -> pb.DeleteTopicsResponse.Result:
        reference = pb.DeleteTopicsRequest.TopicReference(name=name)
        answer = await self.call(methods.DELETE_TOPICS, pb.DeleteTopicsRequest(topics=[reference]))
        return answer.results[0]

    async def heartbeat(
        self, member_id: str, member_epoch: int, names: Sequence[str] | None = None, group_id: str = "group"
    ) -> pb.ShareGroupHeartbeatResponse:
        request = pb.ShareGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            has_subscribed_topic_names=names is not None,
            subscribed_topic_names=names or [],
        )
        return await self.call(methods.SHARE_GROUP_HEARTBEAT, request)

    async def describe(self, group_id: str = "group") -> pb.ShareGroupDescribeResponse.DescribedGroup:
        request = pb.ShareGroupDescribeRequest(group_ids=[group_id])
        answer = await self.call(methods.SHARE_GROUP_DESCRIBE, request)
        return answer.groups[0]

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        answer, _ = await self.channel.call(method, request, timeout_ms=10_000)
        return answer
