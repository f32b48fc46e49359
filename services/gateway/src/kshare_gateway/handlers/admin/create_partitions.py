"""CreatePartitions (key 37), versions 0 to 3: done by the coordinator, answered when this gateway knows the partitions.

The brokers of a manual assignment do not matter, since every gateway serves every partition, but each must be one live
broker. If the coordinator does not answer, the topics get REQUEST_TIMED_OUT, because they may have grown.
"""

from __future__ import annotations

from operator import attrgetter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_gateway.quotas.mutations import Mutations
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CREATE_PARTITIONS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kshare_wire.generated.responses.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult

NO_ASSIGNMENT = -1
FIRST_VERSION_WITH_QUOTA_ERROR = 3


async def handle(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    gateway = context.gateway
    mutations = Mutations(context, is_strict=context.version >= FIRST_VERSION_WITH_QUOTA_ERROR)
    refused = [
        body
        for topic in request.topics
        if (body := _problem(gateway, topic) or _throttled(mutations, topic, gateway)) is not None
    ]
    refused_names = {body.name for body in refused}
    wanted = coordinator_pb2.CreatePartitionsRequest(
        topics=[_growing(topic) for topic in request.topics if topic.name not in refused_names],
        validate_only=request.validate_only,
    )
    results: list[CreatePartitionsTopicResult] = []
    if wanted.topics:
        timeout_ms = min(max(1, request.timeout_ms), CALL_TIMEOUT_MS)
        answer = await change_catalog(gateway, CREATE_PARTITIONS, wanted, timeout_ms=timeout_ms)
        results = [_result(result.name, result.error_code, result.error_message) for result in answer.results]
        if not request.validate_only:
            await gateway.catalog.wait_for_version(answer.version, timeout_ms=timeout_ms)
    return CreatePartitionsResponse(results=[*results, *refused], throttle_time_ms=mutations.throttle_ms)


def failed(context: RequestContext, request: CreatePartitionsRequest, error: KafkaError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[_result(topic.name, error.code, error.message) for topic in request.topics]
    )


def _problem(gateway: Gateway, topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult | None:
    """The problem with the brokers of a manual assignment; the coordinator checks all else."""
    live = {node.node_id for node in gateway.view.gateways()}
    for assignment in topic.assignments or ():
        brokers = list(assignment.broker_ids)
        if len(brokers) != 1 or brokers[0] not in live:
            text = f"Each new partition must be assigned to one live broker; {brokers} is given, {sorted(live)} live"
            return _earlier_problem(gateway, topic) or _result(topic.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return None


def _earlier_problem(gateway: Gateway, topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult | None:
    """What Kafka, and the coordinator, look at before the assignment."""
    known = gateway.view.topics_by_name.get(topic.name)
    if known is None:
        text = f"Topic {topic.name[:300]} does not exist"
        return _result(topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if topic.count <= len(known.partitions):
        text = f"Topic {topic.name} has {len(known.partitions)} partitions; {topic.count} is not an increase"
        return _result(topic.name, ErrorCode.INVALID_PARTITIONS, text)
    return None


def _throttled(
    mutations: Mutations, topic: CreatePartitionsTopic, gateway: Gateway
) -> CreatePartitionsTopicResult | None:
    known = gateway.view.topics_by_name.get(topic.name)
    error = mutations.take(max(0, topic.count - (len(known.partitions) if known else 0)))
    return None if error is None else _result(topic.name, error.code, error.message)


def _growing(topic: CreatePartitionsTopic) -> coordinator_pb2.CreatePartitionsRequest.Topic:
    return coordinator_pb2.CreatePartitionsRequest.Topic(
        name=topic.name,
        count=topic.count,
        assigned_count=NO_ASSIGNMENT if topic.assignments is None else len(topic.assignments),
    )


def _result(name: str, code: int, message: str) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message or None)


serve(
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    VersionRange(0, 3),
    access=Access(each=each_topic(Operation.ALTER)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", identity=attrgetter("name")),
)
