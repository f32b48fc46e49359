"""An existing cluster of several brokers in memory, for what they say about topics: ids, partitions, who is behind."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID
from kshare_upstream.connection import BrokerAddress, ConnectionLost
from kshare_upstream.port import REQUESTS, AResponse, Broker, ClusterView, PartitionLeader, Topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreateTopicsRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic
from kshare_wire.messages import Request
from support.upstream.memory_upstream import MemoryUpstream

NO_CONTROLLER = -1


@dataclass(slots=True)
class ABroker:
    """A broker; `own_view` is what it shows instead of the cluster's topics: it is behind."""

    is_reachable: bool = True
    own_view: Mapping[str, Topic] | None = None
    errors: dict[str, int] = field(default_factory=dict)
    """Error codes by topic."""


class TopicsUpstream(MemoryUpstream):
    """Topics are changed by its methods; `answering` is the broker that a view comes from."""

    def __init__(self, *, brokers: int = 3, has_topic_ids: bool = True) -> None:
        super().__init__()
        self.brokers = {node_id: ABroker() for node_id in range(1, brokers + 1)}
        self.topics: dict[str, Topic] = {}
        self.answering = 1
        self.controller_id = 1
        self.cluster_id: str | None = "first"
        self.has_topic_ids = has_topic_ids
        self.asked: list[list[str]] = []
        """The names of each view that was asked for."""
        self.created: list[CreatableTopic] = []
        self.configs_of_topics: dict[str, dict[str, str]] = {}
        self.refuses_configs = False
        """Whether kshare's principal may not describe configs."""
        self.is_closed = False

    def put(self, name: str, partitions: int, *, topic_id: bytes | None = None, replication_factor: int = 1) -> bytes:
        """A topic that is made, or made again; its id."""
        fresh = uuid.uuid4().bytes if self.has_topic_ids else ZERO_TOPIC_ID
        topic_id = fresh if topic_id is None else topic_id
        leaders = {each: PartitionLeader(1, 0) for each in range(partitions)}
        self.topics[name] = Topic(name, topic_id, leaders, replication_factor=replication_factor)
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        self.put(name, partitions, topic_id=self.topics[name].topic_id)

    async def close(self) -> None:
        self.is_closed = True

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        names = list(self.topics if topics is None else topics)
        self.asked.append(names)
        broker = self._reached(self.answering)
        brokers = {node_id: Broker(node_id, BrokerAddress("memory", 9092)) for node_id in self.brokers}
        found = {name: _topic_at(broker, name, self.topics) for name in names}
        return ClusterView(self.cluster_id, self.controller_id, brokers, found)

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        broker = self._reached(node_id)
        if isinstance(request, DescribeConfigsRequest):
            return cast(AResponse, self._describe_configs_of_topic(request))
        assert isinstance(request, MetadataRequest) and request.topics is not None
        found = [_topic_at(broker, str(topic.name), self.topics) for topic in request.topics]
        shown = [MetadataResponseTopic(name=topic.name, error_code=topic.error_code) for topic in found]
        return cast(AResponse, MetadataResponse(topics=shown))

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        """CreateTopics; `created` has the requests that took effect."""
        self._reached(self.controller_id)
        assert isinstance(request, CreateTopicsRequest)
        results = []
        for topic in request.topics:
            code = ErrorCode.TOPIC_ALREADY_EXISTS if topic.name in self.topics else ErrorCode.NONE
            if topic.replication_factor > len(self.brokers):
                code = ErrorCode.INVALID_REPLICATION_FACTOR
            if code == ErrorCode.NONE:
                self.put(str(topic.name), topic.num_partitions, replication_factor=topic.replication_factor)
                self.created.append(topic)
                self.configs_of_topics[topic.name] = {config.name: str(config.value) for config in topic.configs}
            results.append(CreatableTopicResult(name=topic.name, error_code=code))
        return cast(AResponse, CreateTopicsResponse(topics=results))

    def _describe_configs_of_topic(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        (resource,) = request.resources
        if self.refuses_configs:
            return DescribeConfigsResponse(
                results=[DescribeConfigsResult(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
            )
        configs = self.configs_of_topics.get(resource.resource_name, {})
        found = [DescribeConfigsResourceResult(name=name, value=value) for name, value in configs.items()]
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=found)])

    def _reached(self, node_id: int) -> ABroker:
        broker = self.brokers[node_id]
        if not broker.is_reachable:
            raise ConnectionLost(f"broker {node_id} is away")
        return broker


def _topic_at(broker: ABroker, name: str, topics: Mapping[str, Topic]) -> Topic:
    seen = topics if broker.own_view is None else broker.own_view
    if name in broker.errors:
        return Topic(name, ZERO_TOPIC_ID, {}, broker.errors[name])
    return seen.get(name) or Topic(name, ZERO_TOPIC_ID, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
