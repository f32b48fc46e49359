"""CreateTopics in front of an existing cluster, which creates the topics and keeps all of their configs but one.

No Kafka before 4.4 knows `errors.deadletterqueue.group.enable`, so it is taken out of the request. `true` is what
kshare assumes of every topic of the cluster. `false` is set at kshare once the topic is there; as in Kafka, who may
create a topic may give it configs.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS, loop_ms
from kshare_gateway.handlers.admin import create_topics as local_creation
from kshare_gateway.handlers.admin import incremental_alter_configs as local_alteration
from kshare_gateway.handlers.admin.describe_configs import DEAD_LETTERS_ENABLE, TOPIC
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, served_api
from kshare_gateway.upstream.handlers.broker_addresses import BY_THE_CLUSTER
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreateTopicsRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse

VERSIONS = VersionRange(2, 7)
BOOLEANS = {"true": True, "false": False}
SET = 0
RETRY_INTERVAL_MS = 100


async def create_topics(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    asked = [topic.replaced(configs=_of_cluster(topic)) for topic in request.topics if _problem(topic) is None]
    refused = [problem for topic in request.topics if (problem := _problem(topic)) is not None]
    if refused and not asked:
        return CreateTopicsResponse(topics=refused)
    versions = VersionRange(VERSIONS.minimum, context.version)
    answer = await context.cluster.ask(request.replaced(topics=asked), versions)
    if not request.validate_only:
        disabled = {topic.name for topic in request.topics if _receives_dead_letters(topic) is False}
        await _disable(context, [each for each in answer.topics if not each.error_code and each.name in disabled])
    return CreateTopicsResponse(topics=[*answer.topics, *refused], throttle_time_ms=answer.throttle_time_ms)


def _of_cluster(topic: CreatableTopic) -> list[object]:
    return [config for config in topic.configs if config.name != DEAD_LETTERS_ENABLE]


def _value(topic: CreatableTopic) -> str | None:
    """The text of the config that is kshare's; None without it."""
    return next((config.value or "" for config in topic.configs if config.name == DEAD_LETTERS_ENABLE), None)


def _receives_dead_letters(topic: CreatableTopic) -> bool | None:
    value = _value(topic)
    return None if value is None else BOOLEANS.get(value.strip().lower())


def _problem(topic: CreatableTopic) -> CreatableTopicResult | None:
    value = _value(topic)
    if value is None or _receives_dead_letters(topic) is not None:
        return None
    text = f"{DEAD_LETTERS_ENABLE} must be true or false, found {value[:300]!r}"
    return CreatableTopicResult(
        name=topic.name,
        error_code=ErrorCode.INVALID_CONFIG,
        error_message=text,
        num_partitions=-1,
        replication_factor=-1,
    )


async def _disable(context: RequestContext, created: list[CreatableTopicResult]) -> None:
    """Sets the config of topics that were created; those where that fails get the error.

    The brokers know a new topic some time after the controller.
    """
    deadline_ms = loop_ms() + CALL_TIMEOUT_MS
    left = {result.name: result for result in created}
    while left:
        wanted = local_alteration.Wanted()
        for name in left:
            resource = wanted.resources.add(resource_type=TOPIC, resource_name=name)
            resource.configs.add(name=DEAD_LETTERS_ENABLE, config_operation=SET, value="false")
        try:
            found = await local_alteration.alter_catalog(context.gateway, wanted)
        except KafkaError as error:
            for result in left.values():
                _fail(result, error.code, error.message)
            return
        is_over = loop_ms() >= deadline_ms
        for each in found:
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_over:
                continue
            result = left.pop(each.resource_name)
            if each.error_code:
                _fail(result, each.error_code, each.error_message)
        if left:
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)


def _fail(result: CreatableTopicResult, code: int, message: str) -> None:
    result.error_code = code
    result.error_message = f"The topic was created, and {DEAD_LETTERS_ENABLE} was not set to false: {message}"


CREATE_TOPICS = served_api(
    CreateTopicsRequest,
    CreateTopicsResponse,
    VERSIONS,
    access=BY_THE_CLUSTER,
    handle=create_topics,
    failed=local_creation.failed,
    elements=ElementArrays(("topics",), "topics", identity=attrgetter("name")),
)
