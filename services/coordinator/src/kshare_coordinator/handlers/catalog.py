"""Handlers of the catalog: nodes, WatchCatalog, DescribeCatalog, and changes of topics and configs."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from typing import TypedDict

from kshare_coordinator.catalog_transfers import CatalogTransfers
from kshare_coordinator.core import Core
from kshare_coordinator.deadlines import Deadlines
from kshare_coordinator.handlers.topic_look_up import LookUp
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.cluster_health import problems_of
from kshare_coordinator.machine.catalog.config_changes import DEAD_LETTER_TOPIC, ResourceType
from kshare_coordinator.machine.catalog.view import has_news, known_version
from kshare_coordinator.machine.state import NodeId
from kshare_coordinator.metadata.port import CATALOG
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import ZERO_TOPIC_ID, topic_id_text
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves

WATCHER_LIMIT = 4_000
"""Maximum of waiting WatchCatalog calls; further calls are answered at once."""


def random_topic_id(source: random.Random) -> bytes:
    """A random version 4 uuid whose text does not begin with '-', as Kafka's Uuid.randomUuid."""
    while True:
        topic_id = uuid.UUID(int=source.getrandbits(128), version=4).bytes
        if not topic_id_text(topic_id).startswith("-"):
            return topic_id


def error_of(error: KafkaError | StorageFailure) -> tuple[ErrorCode, str]:
    if isinstance(error, KafkaError):
        return error.code, error.message
    return ErrorCode.KAFKA_STORAGE_ERROR, str(error)


class _Whole(TypedDict, total=False):
    error_code: int
    error_message: str


def _of_the_whole(code: ErrorCode, message: str) -> _Whole:
    """Fields of the answer as a whole: NOT_COORDINATOR is set there, too, for callers that look for the coordinator."""
    return _Whole(error_code=code, error_message=message) if code is ErrorCode.NOT_COORDINATOR else _Whole()


def _topics_not_created(request: pb.CreateTopicsRequest, code: ErrorCode, message: str) -> pb.CreateTopicsResponse:
    results = [
        pb.CreateTopicsResponse.CreatableTopicResult(
            name=topic.name, topic_id=ZERO_TOPIC_ID, error_code=code, error_message=message, num_partitions=-1
        )
        for topic in request.topics
    ]
    return pb.CreateTopicsResponse(topics=results, **_of_the_whole(code, message))


def _topics_not_deleted(request: pb.DeleteTopicsRequest, code: ErrorCode, message: str) -> pb.DeleteTopicsResponse:
    results = [
        pb.DeleteTopicsResponse.Result(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)
        for topic in request.topics
    ]
    return pb.DeleteTopicsResponse(results=results, **_of_the_whole(code, message))


def _partitions_not_created(
    request: pb.CreatePartitionsRequest, code: ErrorCode, message: str
) -> pb.CreatePartitionsResponse:
    results = [
        pb.CreatePartitionsResponse.Result(name=topic.name, error_code=code, error_message=message)
        for topic in request.topics
    ]
    return pb.CreatePartitionsResponse(results=results, **_of_the_whole(code, message))


def _configs_not_altered(
    request: pb.IncrementalAlterConfigsRequest, code: ErrorCode, message: str
) -> pb.IncrementalAlterConfigsResponse:
    results = [
        pb.IncrementalAlterConfigsResponse.Result(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_code=code,
            error_message=message,
        )
        for resource in request.resources
    ]
    return pb.IncrementalAlterConfigsResponse(results=results, **_of_the_whole(code, message))


class CatalogHandlers:
    """Handlers of the catalog; `leases` has the registered nodes, and each watch renews its node's lease.

    `look_up` makes the catalog know the topics of a request. `producer_ids_seen` gets the end of the producer ids that
    a leader reported when it registered.
    """

    def __init__(
        self,
        core: Core,
        leases: Deadlines[tuple[NodeId, str]],
        lease_ms: int,
        source: random.Random,
        look_up: LookUp,
        producer_ids_seen: Callable[[int], None],
    ) -> None:
        self._core = core
        self._producer_ids_seen = producer_ids_seen
        self._look_up = look_up
        self._leases = leases
        self._lease_ms = lease_ms
        self._random = source
        self._watchers = 0
        self._transfers = CatalogTransfers(source)

    @serves(methods.REGISTER_NODE, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def register_node(self, request: pb.RegisterNodeRequest, payload: memoryview) -> pb.RegisterNodeResponse:
        try:
            answer = await self._core.submit(commands.RegisterNode(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.RegisterNodeResponse(
                error_code=code,
                error_message=message,
                active_coordinator_address=self._core.owner_address(CATALOG) or "",
            )
        self._producer_ids_seen(request.producer_id_end)
        return answer

    @serves(methods.DEREGISTER_NODE, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def deregister_node(
        self, request: pb.DeregisterNodeRequest, payload: memoryview
    ) -> pb.DeregisterNodeResponse:
        command = commands.ExpireNode(role=request.role, node_id=request.node_id, incarnation=request.incarnation)
        await self._core.submit(command)
        self._leases.remove(((request.role, request.node_id), request.incarnation))
        return pb.DeregisterNodeResponse()

    @serves(methods.WATCH_CATALOG, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def watch_catalog(self, request: pb.WatchCatalogRequest, payload: memoryview) -> pb.WatchCatalogResponse:
        try:
            if not self._is_registered(request):
                return _not_registered(request)
            self._leases.set(((request.role, request.node_id), request.incarnation), self._lease_ms)
            if request.transfer_id and (piece := self._transfers.next_piece(request)) is not None:
                return self._with_coordinators(piece)
            await self._wait_for_news(request)
            if not self._is_registered(request):
                return _not_registered(request)
            return self._with_coordinators(self._transfers.answer(request, self._core.state_of_catalog()))
        except (KafkaError, StorageFailure) as failure:
            code, message = error_of(failure)
            return pb.WatchCatalogResponse(
                error_code=code,
                error_message=message,
                version=request.after_version,
                active_coordinator_address=self._core.owner_address(CATALOG) or "",
            )

    def _with_coordinators(self, answer: pb.WatchCatalogResponse) -> pb.WatchCatalogResponse:
        if not answer.more:
            answer.MergeFrom(self._core.coordinators)
        return answer

    def _is_registered(self, request: pb.WatchCatalogRequest) -> bool:
        node = self._core.state_of_catalog().nodes.get((request.role, request.node_id))
        return node is not None and node.incarnation == request.incarnation

    async def _wait_for_news(self, request: pb.WatchCatalogRequest) -> None:
        """Waits at most a third of a lease, so that a waiting node renews its lease in time."""
        wait_ms = min(request.max_wait_ms, self._lease_ms // 3)
        if wait_ms <= 0 or self._watchers >= WATCHER_LIMIT:
            return
        self._watchers += 1
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not self._core.watches_are_over:
                    changed = self._core.news
                    known = request.after_coordinators_version
                    state = self._core.state_of_catalog()
                    if has_news(state, known_version(state, request)) or (
                        known and known != self._core.coordinators.coordinators_version
                    ):
                        return
                    await changed.wait()
        except TimeoutError:
            return
        finally:
            self._watchers -= 1

    @serves(methods.DESCRIBE_CATALOG, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def describe_catalog(
        self, request: pb.DescribeCatalogRequest, payload: memoryview
    ) -> pb.DescribeCatalogResponse:
        return pb.DescribeCatalogResponse(version=self._core.state_of_catalog().version)

    @serves(methods.DESCRIBE_NODES, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def describe_nodes(self, request: pb.DescribeNodesRequest, payload: memoryview) -> pb.DescribeNodesResponse:
        state = self._core.state_of_catalog()
        nodes = sorted(state.nodes.items())
        answer = pb.DescribeNodesResponse(cluster_problems=problems_of(state))
        for node_id, node in nodes:
            remaining_ms = self._leases.remaining_ms((node_id, node.incarnation))
            answer.nodes.add(node=node, lease_remaining_ms=remaining_ms or 0)
        return answer

    @serves(methods.CREATE_TOPICS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR, refused=_topics_not_created)
    async def create_topics(self, request: pb.CreateTopicsRequest, payload: memoryview) -> pb.CreateTopicsResponse:
        topic_ids = tuple(random_topic_id(self._random) for _ in request.topics)
        return await self._core.submit(commands.CreateTopics(request=request, topic_ids=topic_ids))

    @serves(methods.DELETE_TOPICS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR, refused=_topics_not_deleted)
    async def delete_topics(self, request: pb.DeleteTopicsRequest, payload: memoryview) -> pb.DeleteTopicsResponse:
        return await self._core.submit(commands.DeleteTopics(request=request))

    @serves(methods.CREATE_PARTITIONS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR, refused=_partitions_not_created)
    async def create_partitions(
        self, request: pb.CreatePartitionsRequest, payload: memoryview
    ) -> pb.CreatePartitionsResponse:
        return await self._core.submit(commands.CreatePartitions(request=request))

    @serves(
        methods.INCREMENTAL_ALTER_CONFIGS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR, refused=_configs_not_altered
    )
    async def incremental_alter_configs(
        self, request: pb.IncrementalAlterConfigsRequest, payload: memoryview
    ) -> pb.IncrementalAlterConfigsResponse:
        await self._look_up(_topics_of(request))
        return await self._core.submit(commands.IncrementalAlterConfigs(request=request))

    @serves(methods.LOOK_UP_TOPICS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def look_up_topics(self, request: pb.LookUpTopicsRequest, payload: memoryview) -> pb.LookUpTopicsResponse:
        self._core.check((CATALOG,))
        await self._look_up(request.topic_names)
        return pb.LookUpTopicsResponse(version=self._core.state_of_catalog().version)


def _topics_of(request: pb.IncrementalAlterConfigsRequest) -> Iterator[str]:
    """Topics that are altered, and that groups get for their dead letters."""
    for resource in request.resources:
        if resource.resource_type == ResourceType.TOPIC:
            yield resource.resource_name
        elif resource.resource_type == ResourceType.GROUP:
            yield from (entry.value for entry in resource.configs if entry.name == DEAD_LETTER_TOPIC)


def _not_registered(request: pb.WatchCatalogRequest) -> pb.WatchCatalogResponse:
    text = (
        f"Node {request.node_id} of role {request.role} is not registered with this incarnation; its lease ran out or "
        "a newer one replaced it. It must register again"
    )
    return pb.WatchCatalogResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, error_message=text)
