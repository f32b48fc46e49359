"""Both sides of a history publisher, for each engine: scripted leaders and a coordinator, or scripted brokers.

The consequences of a response are the same with both, so a test runs on both `ENGINES`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_leader.history.buffer import EventStream
from kshare_leader.history.cluster_target import ClusterHistoryTarget
from kshare_leader.history.leader_target import LeaderHistoryTarget
from kshare_leader.history.numbers import Number
from kshare_leader.history.publisher import HistoryPublisher
from kshare_leader.history.target import HistoryTarget
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import CREATE_TOPICS, LOOK_UP_TOPICS, PRODUCE
from kshare_rpc.network import ChannelUnavailable, Method, Payload, Request, Response
from kshare_upstream.connection import BrokerAddress, ConnectionLost
from kshare_upstream.port import REQUESTS, Broker, ClusterView, LeaderUnknown
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_topics import CreateTopicsRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kshare_wire.generated.responses.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kshare_wire.record_batches import read_produced_batch
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import StillClock

TOPIC_ID = b"history-00000001"
PARTITIONS = 2
KEYS = (b"orders/0/g", b"orders/1/g", b"orders/2/g", b"orders/3/g")
LOST = -1000
"""Among scripted error codes: the connection is lost, and the request has no effect."""
EMBEDDED, KAFKA = "embedded", "kafka"
ENGINES = (EMBEDDED, KAFKA)


def history_topic(topic_id: bytes = TOPIC_ID, **configs: str) -> coordinator_pb2.Topic:
    found = coordinator_pb2.Topic(topic_id=topic_id, name=HISTORY_TOPIC, internal=True)
    for index in range(PARTITIONS):
        found.partitions.add(partition=index, leader_node_id=index + 1)
    for key, value in configs.items():
        found.configs.add(name=key.replace("_", "."), value=value)
    return found


def view_with(*topics: coordinator_pb2.Topic) -> CatalogView:
    nodes = [
        coordinator_pb2.Node(role=coordinator_pb2.ROLE_LEADER, node_id=number, rpc_address=f"leader:{number}")
        for number in (1, 2)
    ]
    return CatalogView(
        version=1,
        topics_by_id={one.topic_id: one for one in topics},
        topics_by_name={one.name: one for one in topics},
        nodes=tuple(nodes),
    )


class HistoryCluster:
    """`answers` are error codes of the next Produce requests, by leader; partition N is led by "leader:N+1"."""

    def __init__(self, engine: str, view: CatalogView, **configs: str) -> None:
        self.view = view
        self.counts = HistoryCounts()
        self.reports: list[str] = []
        self.stored: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: []}
        self.calls: list[tuple[str, float]] = []
        self.answers: dict[str, list[int]] = {}
        self.create_answers: list[int] = []
        self.created: list[tuple[str, int, dict[str, str]]] = []
        """Names, partition counts and configs."""
        self.max_message_bytes = 1 << 20
        """An existing cluster's answer to DescribeConfigs."""
        self.silent: set[str] = set()
        """Leaders of an existing cluster that never answer a Produce."""
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        self.configs = Configs(PROCESS_CONFIGS, {"kshare.upstream.topic.replication.factor": "1", **texts})
        self.publisher = HistoryPublisher(
            target=self._leader_target() if engine == EMBEDDED else self._cluster_target(),
            buffer_bytes=self.configs.integer("kshare.delivery.history.buffer.bytes"),
            clock=StillClock(),
            random=random.Random(1),
            report=self.reports.append,
            counts=self.counts,
        )
        self.streams = [EventStream(self.publisher.buffer, Number(0), key, "<", ">[") for key in KEYS]

    def _leader_target(self) -> HistoryTarget:
        return LeaderHistoryTarget(
            view=lambda: self.view,
            channel=lambda address: _Channel(self, address),
            coordinator=lambda: _Channel(self, "coordinator"),
            wait_for_version=self._wait_for_version,
            configs=self.configs,
        )

    def _cluster_target(self) -> HistoryTarget:
        return ClusterHistoryTarget(
            upstream=_Brokers(self),
            view=lambda: self.view,
            coordinator=lambda: _Channel(self, "coordinator"),
            wait_for_version=self._wait_for_version,
            configs=self.configs,
            report=self.reports.append,
        )

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        await asyncio.sleep(0.01)
        return version == self.view.version

    def values(self) -> list[bytes]:
        return sorted(value for records in self.stored.values() for _, value in records)

    def produce(self, leader: str, batches: Sequence[tuple[int, bytes]]) -> int:
        """The error code for all batches, or LOST."""
        self.calls.append((leader, asyncio.get_running_loop().time()))
        scripted = self.answers.get(leader)
        code = scripted.pop(0) if scripted else 0
        for partition, data in batches:
            assert leader == f"leader:{partition + 1}"
            assert read_produced_batch(data).record_count > 0, "what a leader takes of a producer"
            if not code:
                records = open_records(data, limit_bytes=1 << 24)
                self.stored[partition] += [(record.key or b"", record.value or b"") for record in records]
        return code

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> int:
        """The error code, or LOST."""
        code = self.create_answers.pop(0) if self.create_answers else 0
        if code != LOST:
            self.created.append((name, partitions, dict(configs)))
        return code

    def appear(self) -> None:
        """The topic is in the catalog."""
        self.view = replace(view_with(history_topic()), version=2)


class _Channel:
    """The way to a leader or the coordinator."""

    def __init__(self, cluster: HistoryCluster, address: str) -> None:
        self._cluster = cluster
        self._address = address

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        await asyncio.sleep(0.001)
        return cast(Response, self._answer(method, request, payload)), memoryview(b"")

    def _answer(self, method: Any, request: Any, payload: Payload) -> Any:
        cluster = self._cluster
        if method is LOOK_UP_TOPICS:
            assert list(request.topic_names) == [HISTORY_TOPIC]
            cluster.appear()
            return coordinator_pb2.LookUpTopicsResponse(version=cluster.view.version)
        if method is CREATE_TOPICS:
            return self._create(request)
        assert method is PRODUCE
        batches = [(one.partition, bytes(data)) for one, data in zip(request.partitions, payload, strict=True)]
        lengths = [one.records_length for one in request.partitions]
        assert lengths == [len(data) for _, data in batches]
        assert {one.topic_id for one in request.partitions} == {TOPIC_ID}
        code = self._reached(cluster.produce(self._address, batches))
        response = leader_pb2.ProduceResponse()
        for partition, _ in batches:
            response.partitions.add(topic_id=TOPIC_ID, partition=partition, error_code=code, error_message="as told")
        return response

    def _create(self, request: coordinator_pb2.CreateTopicsRequest) -> coordinator_pb2.CreateTopicsResponse:
        (topic,) = request.topics
        assert topic.internal
        configs = {entry.name: entry.value for entry in topic.configs}
        code = self._reached(self._cluster.create(topic.name, topic.num_partitions, configs))
        if not code:
            self._cluster.appear()
        response = coordinator_pb2.CreateTopicsResponse(version=self._cluster.view.version)
        response.topics.add(name=HISTORY_TOPIC, error_code=code, error_message="as told")
        return response

    def _reached(self, code: int) -> int:
        if code == LOST:
            raise ChannelUnavailable("the connection was lost")
        return code

    async def close(self) -> None:
        pass


class _Brokers:
    """Implements the port of an existing cluster."""

    def __init__(self, cluster: HistoryCluster) -> None:
        self._cluster = cluster
        self._answers: dict[type, Callable[[Any, int], object]] = {
            ProduceRequest: self._produce,
            CreateTopicsRequest: self._create,
            DescribeConfigsRequest: self._describe_configs,
        }

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        return ClusterView("scripted", 1, {number: _broker(number) for number in (1, 2)})

    async def versions(self) -> Mapping[int, VersionRange]:
        raise NotImplementedError

    async def ask_any(self, request: Any, served: VersionRange) -> Any:
        return await self.ask_broker(1, request, served)

    async def ask_controller(self, request: Any, served: VersionRange) -> Any:
        return await self.ask_broker(1, request, served)

    async def ask_broker(
        self, node_id: int, request: Any, served: VersionRange, *, wait_ms: int = 0, purpose: str = REQUESTS
    ) -> Any:
        assert not isinstance(request, ProduceRequest) or purpose.startswith("history"), "a connection of its own"
        await asyncio.sleep(0.001)
        answer = self._answers[type(request)](request, node_id)
        if isinstance(request, ProduceRequest) and f"leader:{node_id}" in self._cluster.silent:
            await asyncio.get_running_loop().create_future()
        return answer

    async def leader_of(self, at: Name) -> int:
        if HISTORY_TOPIC not in self._cluster.view.topics_by_name:
            raise LeaderUnknown(f"partition {at} has no leader")
        return at.partition + 1

    def forget_leader(self, at: Name) -> None:
        pass

    def _produce(self, request: ProduceRequest, node_id: int) -> ProduceResponse:
        (topic,) = request.topic_data
        assert (topic.name, request.acks) == (HISTORY_TOPIC, -1)
        batches = [(each.index, bytes(each.records or b"")) for each in topic.partition_data]
        code = self._cluster.produce(f"leader:{node_id}", batches)
        if code == LOST:
            raise ConnectionLost("the connection was lost")
        answers = [
            PartitionProduceResponse(index=index, error_code=code, error_message="as told", base_offset=0)
            for index, _ in batches
        ]
        return ProduceResponse(responses=[TopicProduceResponse(name=HISTORY_TOPIC, partition_responses=answers)])

    def _create(self, request: CreateTopicsRequest, node_id: int) -> CreateTopicsResponse:
        (topic,) = request.topics
        configs = {each.name: each.value or "" for each in topic.configs}
        code = self._cluster.create(topic.name, topic.num_partitions, configs)
        if code == LOST:
            raise ConnectionLost("the connection was lost")
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=topic.name, error_code=code, error_message="as told")]
        )

    def _describe_configs(self, request: DescribeConfigsRequest, node_id: int) -> DescribeConfigsResponse:
        limit = DescribeConfigsResourceResult(name="max.message.bytes", value=str(self._cluster.max_message_bytes))
        return DescribeConfigsResponse(results=[DescribeConfigsResult(resource_name=HISTORY_TOPIC, configs=[limit])])


def _broker(node_id: int) -> Broker:
    return Broker(node_id, BrokerAddress(f"leader-{node_id}", 9092))
