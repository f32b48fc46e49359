"""CreateTopics (key 19), versions 2 to 7: done by the coordinator, answered when this gateway knows the topics.

A manual assignment determines the number of partitions. Its brokers do not matter, since every gateway serves every
partition, but each must be live. The response's replication factor is 1. If the coordinator does not answer, the topics
get REQUEST_TIMED_OUT, because they may have been created.
"""

from __future__ import annotations

from operator import attrgetter

from kshare_core.configs import InvalidConfig, config_text, effective_topic_config
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.internal_topics import INTERNAL_TOPICS
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_gateway.handlers.admin.metadata import is_valid_topic_name
from kshare_gateway.quotas.mutations import Mutations
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, Access
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CREATE_TOPICS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreateTopicsRequest
from kshare_wire.generated.responses.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)

FIRST_VERSION_WITH_QUOTA_ERROR = 6
_TOPIC_CONFIG, _STATIC_BROKER_CONFIG, _DEFAULT_CONFIG = 1, 4, 5


async def handle(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    gateway = context.gateway
    mutations = Mutations(context, is_strict=context.version >= FIRST_VERSION_WITH_QUOTA_ERROR)
    refused = [
        body
        for topic in request.topics
        if (body := _problem(context, topic) or _throttled(mutations, topic, gateway)) is not None
    ]
    refused_names = {body.name for body in refused}
    wanted = coordinator_pb2.CreateTopicsRequest(
        topics=[_creatable(topic) for topic in request.topics if topic.name not in refused_names],
        validate_only=request.validate_only,
    )
    results: list[CreatableTopicResult] = []
    if wanted.topics:
        timeout_ms = min(max(1, request.timeout_ms), CALL_TIMEOUT_MS)
        answer = await change_catalog(gateway, CREATE_TOPICS, wanted, timeout_ms=timeout_ms)
        results = [_result(context, result) for result in answer.topics]
        if not request.validate_only:
            await gateway.catalog.wait_for_version(answer.version, timeout_ms=timeout_ms)
    return CreateTopicsResponse(topics=[*results, *refused], throttle_time_ms=mutations.throttle_ms)


def failed(context: RequestContext, request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_refusal(topic.name, error.code, error.message) for topic in request.topics])


def _problem(context: RequestContext, topic: CreatableTopic) -> CreatableTopicResult | None:
    """Missing authorization, or the problem with a manual assignment, a null value or an internal topic.

    The coordinator checks all else, and the name: that a topic exists, or that its name is not allowed, comes first.
    """
    gateway = context.gateway
    if not context.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) and not context.authorize(
        Operation.CREATE, ResourceType.TOPIC, topic.name
    ):
        return _refusal(topic.name, *DENIED[ResourceType.TOPIC])
    if topic.name in INTERNAL_TOPICS and topic_named(gateway, topic.name) is not None:
        return _refusal(topic.name, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {topic.name} already exists")
    problem = _problem_of_values(gateway, topic)
    if problem is None or not is_valid_topic_name(topic.name):
        return None
    if topic_named(gateway, topic.name) is not None:
        return _refusal(topic.name, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {topic.name} already exists")
    return problem


def _problem_of_values(gateway: Gateway, topic: CreatableTopic) -> CreatableTopicResult | None:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        return _refusal(topic.name, ErrorCode.INVALID_CONFIG, f"These configs have no value: {', '.join(nulls)}")
    if not topic.assignments:
        return None
    live = {node.node_id for node in gateway.view.gateways()}
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    brokers = [broker for assignment in topic.assignments for broker in assignment.broker_ids]
    code, text = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ""
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        code, text = ErrorCode.INVALID_REQUEST, "Partitions and replication factor must be -1 with an assignment"
    elif indexes != list(range(len(indexes))):
        text = f"Partitions {indexes} are not numbered from 0 without a gap"
    elif any(len(assignment.broker_ids) != 1 for assignment in topic.assignments):
        text = "Each partition must have exactly one replica"
    elif unknown := sorted(set(brokers) - live):
        text = f"Brokers {unknown} are not alive; {sorted(live)} are"
    return _refusal(topic.name, code, text) if text else None


def _throttled(mutations: Mutations, topic: CreatableTopic, gateway: Gateway) -> CreatableTopicResult | None:
    default = gateway.configs.integer("num.partitions")
    count = len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default)
    error = mutations.take(count)
    return None if error is None else _refusal(topic.name, error.code, error.message)


def _creatable(topic: CreatableTopic) -> coordinator_pb2.CreateTopicsRequest.CreatableTopic:
    return coordinator_pb2.CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[coordinator_pb2.ConfigEntry(name=config.name, value=config.value or "") for config in topic.configs],
        assigned_partitions=[assignment.partition_index for assignment in topic.assignments],
    )


def _result(
    context: RequestContext, result: coordinator_pb2.CreateTopicsResponse.CreatableTopicResult
) -> CreatableTopicResult:
    if result.error_code:
        return _refusal(result.name, result.error_code, result.error_message)
    if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
        return CreatableTopicResult(
            name=result.name,
            topic_id=result.topic_id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
        )
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        num_partitions=result.num_partitions,
        replication_factor=1,
        configs=_configs(context.gateway, {entry.name: entry.value for entry in result.configs}),
    )


def _configs(gateway: Gateway, texts: dict[str, str]) -> list[CreatableTopicConfigs] | None:
    """All config values of the topic; None (not given) if this gateway cannot read one that the coordinator took."""
    try:
        configs = effective_topic_config(gateway.configs, texts)
    except InvalidConfig:
        return None
    return [
        CreatableTopicConfigs(
            name=name,
            value=config_text(configs[name]),
            config_source=_TOPIC_CONFIG
            if name in texts
            else _STATIC_BROKER_CONFIG
            if configs.is_inherited(name)
            else _DEFAULT_CONFIG,
        )
        for name in configs
        if name in texts or not configs.table[name].is_internal
    ]


def _refusal(name: str, code: int, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=code, error_message=message, num_partitions=-1, replication_factor=-1
    )


serve(
    CreateTopicsRequest,
    CreateTopicsResponse,
    VersionRange(2, 7),
    access=Access(by_handler="Create on the cluster or the topic, DescribeConfigs on the topic for its configs"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", identity=attrgetter("name")),
)
