"""Metadata (key 3), versions 0 to 13: gateways as brokers, topics and their partitions from the catalog.

A request asks for all topics (null; in version 0 an empty list), by name, or by id (from version 10 on). An unknown
name is created if the request (version 4 on; before, always) and auto.create.topics.enable allow it, and answered when
this gateway knows it. A partition without a live leader has LEADER_NOT_AVAILABLE. Clients are told a gateway as the
leader (`ClientBrokers`); replicas and in-sync replicas are that one gateway. Authorized operations are given on request
from version 8 on. For internal topics see `internal_topics`. All topics, and topics with many partitions, are encoded
once for each version of the catalog (`metadata_fragments`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import overload

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC_ID, STATE_TOPIC_ID
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_core.work_slices import SLICE_ELEMENTS, portions
from kshare_gateway.catalog.brokers import controller_id, metadata_brokers
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.catalog.internal_topics import (
    all_topics,
    internal_topic_broker,
    topic_named,
    topic_with_id,
)
from kshare_gateway.gateway import CALL_TIMEOUT_MS, ClientBrokers, Gateway
from kshare_gateway.quotas.mutations import Mutations
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CREATE_TOPICS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kshare_wire.messages import ZERO_ID, EncodedArray, encode_array_in_slices

FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS = 8
VERSIONS_WITH_OPERATIONS_OF_CLUSTER = range(8, 11)
VERSIONS_WITH_UNUSABLE_IDS = range(10, 12)
"""Their requests have topic ids and null names, and their responses no null names: Kafka refuses both."""
"""Later ones leave them to DescribeCluster."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_valid_topic_name(name: str) -> bool:
    """org.apache.kafka.common.internals.Topic.validate."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


async def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    asked = request.topics
    operations = _TopicOperations(context, is_asked=_asks_for_operations_of_topics(context, request))
    if asked is None or (context.version == 0 and not asked):
        return _response(context, await _all_topics(context, operations), _operations_of_cluster(context, request))
    if context.version in VERSIONS_WITH_UNUSABLE_IDS:
        await _refuse_ids(context, asked)
    may_create = context.version < 4 or request.allow_auto_topic_creation
    not_created: frozenset[str] = frozenset()
    if may_create and context.gateway.configs.boolean("auto.create.topics.enable"):
        not_created = await _create_missing(context, asked)
    topics = await _asked_topics(context, asked, operations, not_created)
    return _response(context, topics, _operations_of_cluster(context, request))


async def _refuse_ids(context: RequestContext, asked: Sequence[MetadataRequestTopic]) -> None:
    """KafkaError for a topic that is asked for by its id."""
    count = context.count_elements()
    for entry in asked:
        if entry.name is None:
            text = f"Topic name can not be null for version {context.version}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if entry.topic_id != ZERO_ID:
            text = f"Topic IDs are not supported in requests for version {context.version}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if count.add():
            await count.next_slice()


def _asks_for_operations_of_topics(context: RequestContext, request: MetadataRequest) -> bool:
    knows = context.version >= FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS
    return knows and request.include_topic_authorized_operations


class _TopicOperations:
    """The authorized operations of topics, if the client asks for them."""

    def __init__(self, context: RequestContext, *, is_asked: bool) -> None:
        self._context = context
        self.is_asked = is_asked

    def of(self, name: str) -> int:
        return authorized_operations.of_topic(self._context, name) if self.is_asked else authorized_operations.UNKNOWN


def _operations_of_cluster(context: RequestContext, request: MetadataRequest) -> int:
    knows = context.version in VERSIONS_WITH_OPERATIONS_OF_CLUSTER
    is_asked = knows and request.include_cluster_authorized_operations
    return authorized_operations.of_cluster(context) if is_asked else authorized_operations.UNKNOWN


async def _all_topics(context: RequestContext, operations: _TopicOperations) -> EncodedArray[MetadataResponseTopic]:
    """All topics that the client may describe, encoded.

    Without an authorizer the bytes are the same for all clients while the catalog is unchanged.
    """
    gateway, view = context.gateway, context.gateway.view

    async def build() -> EncodedArray[MetadataResponseTopic]:
        codes: list[int] = []
        brokers = gateway.client_brokers(context.listener)
        described = (
            _topic(topic, operations, _Partitions(context, topic, brokers, codes))
            for topic in all_topics(gateway)
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        )
        steps = encode_array_in_slices(MetadataResponse, context.version, ("topics",), described)
        encoded = await gateway.slices.run(steps)
        return EncodedArray(len(encoded), encoded.data, codes)

    if gateway.authorizer is not None:
        return await build()
    return await gateway.metadata_fragments.get((context.version, context.listener, operations.is_asked), view, build)


async def _asked_topics(
    context: RequestContext,
    asked: Sequence[MetadataRequestTopic],
    operations: _TopicOperations,
    not_created: frozenset[str],
) -> list[MetadataResponseTopic]:
    """A topic that is asked for twice is described once."""
    count = context.count_elements()
    last: dict[tuple[str | None, bytes], MetadataRequestTopic] = {}
    for entry in reversed(asked):
        last.setdefault((entry.name, entry.topic_id), entry)
        if count.add():
            await count.next_slice()
    topics: list[MetadataResponseTopic] = []
    for entry in reversed(last.values()):
        topic, missing = _asked_topic(context.gateway, entry)
        if not _may_describe(context, entry, topic) or entry.name in not_created:
            topics.append(_denied_topic(entry))
        elif topic is None:
            topics.append(_missing_topic(entry, missing, operations))
        elif len(topic.partitions) <= SLICE_ELEMENTS:
            brokers = context.gateway.client_brokers(context.listener)
            partitions = list(_Partitions(context, topic, brokers, []))
            topics.append(_topic(topic, operations, partitions))
        else:
            many = await _many_partitions(context, topic)
            topics.append(_topic(topic, operations, many))
        if count.add(1 if topic is None else min(len(topic.partitions), SLICE_ELEMENTS)):
            await count.next_slice()
    return topics


def _may_describe(context: RequestContext, entry: MetadataRequestTopic, topic: coordinator_pb2.Topic | None) -> bool:
    name = entry.name if topic is None else topic.name
    return name is None or context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _denied_topic(entry: MetadataRequestTopic) -> MetadataResponseTopic:
    """A client that asked by the id does not learn the name."""
    is_by_id = entry.name is None or entry.topic_id != ZERO_ID
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=None if is_by_id else entry.name,
        topic_id=entry.topic_id,
        topic_authorized_operations=authorized_operations.UNKNOWN,
    )


def _missing_topic(entry: MetadataRequestTopic, code: ErrorCode, operations: _TopicOperations) -> MetadataResponseTopic:
    """An id that is unknown has no name that a client could do anything with."""
    known = authorized_operations.UNKNOWN if entry.name is None else operations.of(entry.name)
    return MetadataResponseTopic(
        error_code=code, name=entry.name, topic_id=entry.topic_id, topic_authorized_operations=known
    )


async def _many_partitions(
    context: RequestContext, topic: coordinator_pb2.Topic
) -> EncodedArray[MetadataResponsePartition]:
    """The partitions of one topic, encoded; the bytes are the same while the catalog is unchanged."""
    gateway = context.gateway
    partitions = _Partitions(context, topic, gateway.client_brokers(context.listener), [])

    async def build() -> EncodedArray[MetadataResponsePartition]:
        steps = encode_array_in_slices(MetadataResponse, context.version, ("topics", "partitions"), partitions)
        encoded = await gateway.slices.run(steps)
        return EncodedArray(len(encoded), encoded.data, partitions.error_codes)

    key = (context.version, context.listener, topic.topic_id)
    return await gateway.metadata_fragments.get(key, gateway.view, build)


def failed(context: RequestContext, request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    """As in Kafka, a null name is answered as an empty one: most versions of the response have no null."""
    topics: list[MetadataResponseTopic] = [
        MetadataResponseTopic(error_code=error.code, name=entry.name or "", topic_id=entry.topic_id)
        for entry in request.topics or ()
    ]
    response = _response(context, topics, authorized_operations.UNKNOWN)
    response.error_code = error.code
    return response


def _response(context: RequestContext, topics: Sequence[MetadataResponseTopic], operations: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=metadata_brokers(context),
        cluster_id=context.gateway.view.cluster_id,
        controller_id=controller_id(context),
        topics=topics,
        cluster_authorized_operations=operations,
    )


def _asked_topic(gateway: Gateway, entry: MetadataRequestTopic) -> tuple[coordinator_pb2.Topic | None, ErrorCode]:
    """The topic that is asked for, or the error where there is none."""
    if entry.name is None or entry.topic_id != ZERO_ID:
        return topic_with_id(gateway, entry.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    if not is_valid_topic_name(entry.name):
        return topic_named(gateway, entry.name), ErrorCode.INVALID_TOPIC_EXCEPTION
    return topic_named(gateway, entry.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(
    topic: coordinator_pb2.Topic, operations: _TopicOperations, partitions: Sequence[MetadataResponsePartition]
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=operations.of(topic.name),
    )


class _Partitions(Sequence[MetadataResponsePartition]):
    """The partitions of one topic, described while they are iterated; `error_codes` gets those other than NONE."""

    def __init__(
        self,
        context: RequestContext,
        topic: coordinator_pb2.Topic,
        brokers: ClientBrokers,
        error_codes: list[int],
    ) -> None:
        self._context = context
        self._topic = topic
        self._brokers = brokers
        self.error_codes = error_codes

    def __len__(self) -> int:
        return len(self._topic.partitions)

    @overload
    def __getitem__(self, index: int) -> MetadataResponsePartition: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MetadataResponsePartition]: ...
    def __getitem__(self, index: int | slice) -> MetadataResponsePartition | Sequence[MetadataResponsePartition]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        partition = self._topic.partitions[index]
        broker, is_reachable = _broker_of(self._context, self._topic, index, self._brokers)
        if not is_reachable:
            self.error_codes.append(ErrorCode.LEADER_NOT_AVAILABLE)
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if is_reachable else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=broker if is_reachable else -1,
            leader_epoch=partition.leader_epoch,
            replica_nodes=(broker,),
            isr_nodes=(broker,),
        )

    def __iter__(self) -> Iterator[MetadataResponsePartition]:
        return map(self.__getitem__, range(len(self)))


def partition_broker(context: RequestContext, topic: coordinator_pb2.Topic, index: int) -> tuple[int, bool]:
    """The gateway that clients are told for a partition, -1 for none, and whether the partition is reachable there."""
    return _broker_of(context, topic, index, context.gateway.client_brokers(context.listener))


def _broker_of(
    context: RequestContext, topic: coordinator_pb2.Topic, index: int, brokers: ClientBrokers
) -> tuple[int, bool]:
    if topic.topic_id in (STATE_TOPIC_ID, CONSUMER_OFFSETS_TOPIC_ID):
        broker = internal_topic_broker(context.gateway.view, topic, index, context.listener)
        return broker, broker >= 0
    broker = brokers.broker(topic, index)
    return broker, broker >= 0 and brokers.is_reachable(topic, index)


async def _create_missing(context: RequestContext, asked: Sequence[MetadataRequestTopic]) -> frozenset[str]:
    """Asks the coordinator to create unknown topics; returns those that the client may describe but not create.

    Rejected ones are then answered as unknown.
    """
    gateway, count = context.gateway, context.count_elements()
    mutations = Mutations(context, is_strict=True)  # as brokers ask the controller for it, in a version that knows
    missing: dict[str, None] = {}
    denied: set[str] = set()
    may_create_all = context.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
    for entry in asked:
        name = entry.name
        is_missing = name is not None and entry.topic_id == ZERO_ID and topic_named(gateway, name) is None
        if name is not None and is_missing and is_valid_topic_name(name):
            if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                pass
            elif may_create_all or context.authorize(Operation.CREATE, ResourceType.TOPIC, name):
                if mutations.take(gateway.configs.integer("num.partitions")) is None:
                    missing[name] = None
            else:
                denied.add(name)
        if count.add():
            await count.next_slice()
    for names in portions(missing):
        await _create(gateway, names)
    return frozenset(denied)


async def _create(gateway: Gateway, missing: list[str]) -> None:
    request = coordinator_pb2.CreateTopicsRequest(
        topics=[
            coordinator_pb2.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in missing
        ]
    )
    try:
        answer = await change_catalog(gateway, CREATE_TOPICS, request)
    except KafkaError as failure:
        gateway.lines.warning("creation", "topics %s could not be created: %s", missing, failure)
        return
    for result in answer.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            gateway.lines.warning("creation", "topic %s could not be created: %s", result.name, result.error_message)
    await gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)


serve(
    MetadataRequest,
    MetadataResponse,
    VersionRange(0, 13),
    access=Access(by_handler="Describe on the topics, Create on those that are made"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
