"""DeleteTopics (key 20), versions 1 to 6: by name, from version 6 on also by id.

Answered when this gateway no longer knows the topics. If the coordinator does not answer, they get REQUEST_TIMED_OUT,
because they may have been deleted.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.catalog.internal_topics import internal_name, topic_named
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.quotas.mutations import Mutations
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, Access, topic_name_of_id
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DELETE_TOPICS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.responses.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from kshare_wire.messages import ZERO_ID

FIRST_VERSION_WITH_DISABLED_ERROR = 3
"""Earlier versions do not know TOPIC_DELETION_DISABLED."""
FIRST_VERSION_WITH_QUOTA_ERROR = 5
Reference = tuple[str | None, bytes]


async def handle(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    gateway = context.gateway
    wanted = coordinator_pb2.DeleteTopicsRequest()
    refused: list[DeletableTopicResult] = []
    mutations = Mutations(context, is_strict=context.version >= FIRST_VERSION_WITH_QUOTA_ERROR)
    for name, topic_id in _references(context, request):
        if (name is None) == (topic_id == ZERO_ID):
            text = "A topic to delete needs either a name or an id"
            refused.append(_result(name, topic_id, ErrorCode.INVALID_REQUEST, text))
        elif (internal := internal_name(gateway.view, topic_id)) is not None:
            text = f"Topic {internal} is internal and cannot be deleted by clients"
            refused.append(_result(internal, topic_id, ErrorCode.INVALID_REQUEST, text))
        elif (denial := _denial(context, name, topic_id)) is not None:
            refused.append(denial)
        elif name == "":
            text = "No topic has an empty name"
            refused.append(_result(name, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
        elif (error := mutations.take(_partition_count(context, name, topic_id))) is not None:
            refused.append(_result(name, topic_id, error.code, error.message))
        elif name is None:
            wanted.topics.add(topic_id=topic_id)
        else:
            wanted.topics.add(name=name)
    if not wanted.topics:
        return DeleteTopicsResponse(responses=refused, throttle_time_ms=mutations.throttle_ms)
    timeout_ms = min(max(1, request.timeout_ms), CALL_TIMEOUT_MS)
    answer = await change_catalog(gateway, DELETE_TOPICS, wanted, timeout_ms=timeout_ms)
    await gateway.catalog.wait_for_version(answer.version, timeout_ms=timeout_ms)
    results = [
        _result(result.name or None, result.topic_id or ZERO_ID, _known_code(context, result), result.error_message)
        for result in answer.results
    ]
    return DeleteTopicsResponse(responses=[*results, *refused], throttle_time_ms=mutations.throttle_ms)


def _known_code(context: RequestContext, result: coordinator_pb2.DeleteTopicsResponse.Result) -> int:
    """The result's error code, or one in its place that the request's version knows."""
    is_known = context.version >= FIRST_VERSION_WITH_DISABLED_ERROR
    if result.error_code == ErrorCode.TOPIC_DELETION_DISABLED and not is_known:
        return ErrorCode.INVALID_REQUEST
    return result.error_code


def _partition_count(context: RequestContext, name: str | None, topic_id: bytes) -> int:
    view = context.gateway.view
    topic = view.topics_by_id.get(topic_id) if name is None else view.topics_by_name.get(name)
    return len(topic.partitions) if topic else 0


def _denial(context: RequestContext, name: str | None, topic_id: bytes) -> DeletableTopicResult | None:
    """The answer to a client that may not delete the topic; by its id it learns the name only if it may describe it."""
    known = name if name is not None else topic_name_of_id(context, topic_id)
    if known is None or context.may(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
        return None
    if context.authorize(Operation.DELETE, ResourceType.TOPIC, known):
        return None
    may_describe = context.may(Operation.DESCRIBE, ResourceType.TOPIC, known)
    if name is not None and may_describe and topic_named(context.gateway, name) is None:
        return _result(name, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic")
    is_told = name is not None or may_describe
    return _result(known if is_told else None, topic_id, *DENIED[ResourceType.TOPIC])


def failed(context: RequestContext, request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    references = _references(context, request)
    return DeleteTopicsResponse(
        responses=[_result(name, topic_id, error.code, error.message) for name, topic_id in references]
    )


def _references(context: RequestContext, request: DeleteTopicsRequest) -> list[Reference]:
    if context.version >= 6:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, ZERO_ID) for name in request.topic_names]


def _result(name: str | None, topic_id: bytes, code: int, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message or None)


serve(
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    VersionRange(1, 6),
    access=Access(by_handler="Delete on the topics or the cluster, and Describe to be told their names"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(
        ("topics", "topic_names"),
        "responses",
        identity=lambda topic: topic if isinstance(topic, str) else (topic.name, topic.topic_id),
    ),
)
