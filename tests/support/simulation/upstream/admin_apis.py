"""Requests about the cluster, its topics and its transactions; every broker answers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kshare_core.errors import ErrorCode
from kshare_upstream.port import NO_LEADER
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.framing import RequestHeader
from kshare_wire.generated.requests.add_partitions_to_txn import AddPartitionsToTxnRequest
from kshare_wire.generated.requests.create_partitions import CreatePartitionsRequest
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreateTopicsRequest
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.requests.describe_groups import DescribeGroupsRequest
from kshare_wire.generated.requests.end_txn import EndTxnRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kshare_wire.generated.responses.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from kshare_wire.generated.responses.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kshare_wire.generated.responses.describe_groups import DescribedGroup, DescribeGroupsResponse
from kshare_wire.generated.responses.end_txn import EndTxnResponse
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse
from kshare_wire.generated.responses.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kshare_wire.generated.responses.init_producer_id import InitProducerIdResponse
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from support.simulation.upstream.cluster import REPLICAS, SimulatedTopic, SimulatedUpstream
from support.simulation.upstream.partitions import SimulatedPartition
from support.simulation.upstream.transactions import ProducerIdentity

CLUSTER_ID = "simulated"
ALL_OPERATIONS = 0x1FFE
"""A bit for each operation but the first (KIP-430): there is no authorizer, so everything is allowed."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
BATCHED_COORDINATORS_SINCE = 4
"""The version of FindCoordinator since which it asks for several keys."""


class AdminApis:
    """See the module's text."""

    def __init__(self, upstream: SimulatedUpstream) -> None:
        self._upstream = upstream

    # The cluster

    async def metadata(self, request: MetadataRequest, header: RequestHeader) -> MetadataResponse:
        upstream = self._upstream
        if request.topics is None:
            topics = [self._described(topic) for topic in upstream.topics.values() if self._is_known(topic)]
        else:
            topics = [self._wanted(each.name, each.topic_id) for each in request.topics]
        brokers = [
            MetadataResponseBroker(node_id=node_id, host=host, port=port)
            for node_id, (host, port) in upstream.addresses.items()
        ]
        return MetadataResponse(
            brokers=brokers,
            topics=topics,
            controller_id=upstream.controller_id,
            cluster_id=CLUSTER_ID,
            cluster_authorized_operations=ALL_OPERATIONS,
        )

    def _is_known(self, topic: SimulatedTopic) -> bool:
        return self._upstream.loop.now_s >= topic.known_at

    def _wanted(self, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
        upstream = self._upstream
        topic = upstream.topic_of_id(topic_id) if name is None else upstream.topics.get(name)
        if topic is None or not self._is_known(topic):
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)
        return self._described(topic)

    def _described(self, topic: SimulatedTopic) -> MetadataResponseTopic:
        partitions = [self._described_partition(each) for each in topic.partitions]
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=partitions,
            topic_authorized_operations=ALL_OPERATIONS,
        )

    def _described_partition(self, partition: SimulatedPartition) -> MetadataResponsePartition:
        leader = self._upstream.known_leader(partition)
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
            partition_index=partition.at.partition,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replica_ids,
            isr_nodes=partition.in_sync,
        )

    async def heartbeat(self, request: HeartbeatRequest, header: RequestHeader) -> HeartbeatResponse:
        """No group has a member here."""
        return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)

    async def describe_groups(self, request: DescribeGroupsRequest, header: RequestHeader) -> DescribeGroupsResponse:
        """Groups without members, with which everything is allowed."""
        groups = [
            DescribedGroup(group_id=each, group_state="Dead", authorized_operations=ALL_OPERATIONS)
            for each in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    async def describe_cluster(self, request: DescribeClusterRequest, header: RequestHeader) -> DescribeClusterResponse:
        brokers = [
            DescribeClusterBroker(broker_id=node_id, host=host, port=port)
            for node_id, (host, port) in self._upstream.addresses.items()
        ]
        return DescribeClusterResponse(
            cluster_id=CLUSTER_ID, controller_id=self._upstream.controller_id, brokers=brokers
        )

    async def find_coordinator(self, request: FindCoordinatorRequest, header: RequestHeader) -> FindCoordinatorResponse:
        """The broker with the lowest id, for every key."""
        node_id = self._upstream.controller_id
        host, port = self._upstream.addresses.get(node_id, ("", -1))
        if header.version < BATCHED_COORDINATORS_SINCE:
            return FindCoordinatorResponse(node_id=node_id, host=host, port=port)
        found = [Coordinator(key=key, node_id=node_id, host=host, port=port) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    # Topics

    async def create_topics(self, request: CreateTopicsRequest, header: RequestHeader) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[self._created(topic) for topic in request.topics])

    def _created(self, wanted: CreatableTopic) -> CreatableTopicResult:
        upstream = self._upstream
        if wanted.name in upstream.topics:
            return CreatableTopicResult(name=wanted.name, error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
        of_cluster = min(REPLICAS, len(upstream.addresses))
        replicas = of_cluster if wanted.replication_factor == -1 else wanted.replication_factor
        if not 0 < replicas <= len(upstream.addresses):
            text = f"Unable to replicate the partition {replicas} time(s)"
            return CreatableTopicResult(
                name=wanted.name, error_code=ErrorCode.INVALID_REPLICATION_FACTOR, error_message=text
            )
        count = 1 if wanted.num_partitions == -1 else wanted.num_partitions
        configs = {each.name: each.value or "" for each in wanted.configs}
        topic = upstream.create_topic(wanted.name, count, replicas, configs)
        return CreatableTopicResult(
            name=wanted.name, topic_id=topic.topic_id, num_partitions=count, replication_factor=replicas
        )

    async def create_partitions(
        self, request: CreatePartitionsRequest, header: RequestHeader
    ) -> CreatePartitionsResponse:
        results = []
        for wanted in request.topics:
            topic, code = self._upstream.topics.get(wanted.name), ErrorCode.NONE
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif wanted.count <= len(topic.partitions):
                code = ErrorCode.INVALID_PARTITIONS
            else:
                self._upstream.add_partitions(topic, wanted.count, len(topic.partitions[0].replica_ids))
            results.append(CreatePartitionsTopicResult(name=wanted.name, error_code=code))
        return CreatePartitionsResponse(results=results)

    async def delete_topics(self, request: DeleteTopicsRequest, header: RequestHeader) -> DeleteTopicsResponse:
        names = [(each.name, each.topic_id) for each in request.topics] or [(name, b"") for name in request.topic_names]
        return DeleteTopicsResponse(responses=[self._deleted(name, topic_id) for name, topic_id in names])

    def _deleted(self, name: str | None, topic_id: bytes) -> DeletableTopicResult:
        topic = self._upstream.topic_of_id(topic_id) if name is None else self._upstream.topics.get(name)
        if topic is None:
            return DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._upstream.delete_topic(topic.name)
        return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)

    # Configs

    def _configs_of(self, kind: int, name: str) -> Mapping[str, str] | None:
        """None where there is no such topic."""
        defaults = self._upstream.broker_configs
        if kind == BROKER_RESOURCE:
            return defaults
        topic = self._upstream.topics.get(name) if kind == TOPIC_RESOURCE else None
        return None if topic is None else {**defaults, **topic.configs}

    async def describe_configs(self, request: DescribeConfigsRequest, header: RequestHeader) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(results=[self._described_configs(each) for each in request.resources])

    def _described_configs(self, wanted: DescribeConfigsResource) -> DescribeConfigsResult:
        found = self._configs_of(wanted.resource_type, wanted.resource_name)
        names = wanted.configuration_keys
        configs = [
            DescribeConfigsResourceResult(name=name, value=value)
            for name, value in (found or {}).items()
            if names is None or name in names
        ]
        return DescribeConfigsResult(
            error_code=ErrorCode.NONE if found is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
            configs=configs,
        )

    async def alter_configs(
        self, request: IncrementalAlterConfigsRequest, header: RequestHeader
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(responses=[self._altered(each) for each in request.resources])

    def _altered(self, wanted: AlterConfigsResource) -> AlterConfigsResourceResponse:
        topic = self._upstream.topics.get(wanted.resource_name) if wanted.resource_type == TOPIC_RESOURCE else None
        for each in wanted.configs if topic else ():
            if topic is not None:
                topic.configs[each.name] = each.value or ""
        return AlterConfigsResourceResponse(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else ErrorCode.NONE,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
        )

    # Producers and their transactions

    async def init_producer_id(self, request: InitProducerIdRequest, header: RequestHeader) -> InitProducerIdResponse:
        transactions = self._upstream.transactions
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=transactions.fresh_producer_id(), producer_epoch=0)
        code, identity = transactions.initialize(request.transactional_id, request.transaction_timeout_ms / 1000)
        return InitProducerIdResponse(error_code=code, producer_id=identity.producer_id, producer_epoch=identity.epoch)

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, header: RequestHeader
    ) -> AddPartitionsToTxnResponse:
        names = [Name(topic.name, partition) for topic in request.v3_and_below_topics for partition in topic.partitions]
        identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        code = self._upstream.transactions.add_partitions(request.v3_and_below_transactional_id, identity, names)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_added(names, code))

    async def end_txn(self, request: EndTxnRequest, header: RequestHeader) -> EndTxnResponse:
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = self._upstream.transactions.end(request.transactional_id, identity, commit=request.committed)
        return EndTxnResponse(error_code=code)


def _added(names: Iterable[Name], code: int) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for at in names:
        result = AddPartitionsToTxnPartitionResult(partition_index=at.partition, partition_error_code=code)
        by_topic.setdefault(at.topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=results) for name, results in by_topic.items()
    ]
