"""DeleteTopics (key 20), versions 1 to 6: by name, from version 6 on also by id.

Answered when this gateway no longer knows the topics. If the coordinator does not answer, they get REQUEST_TIMED_OUT,
because they may have been deleted.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.catalog.internal_topics import internal_name
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DELETE_TOPICS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.responses.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from kshare_wire.messages import ZERO_ID

Reference = tuple[str | None, bytes]


async def handle(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    gateway = context.gateway
    wanted = coordinator_pb2.DeleteTopicsRequest()
    refused: list[DeletableTopicResult] = []
    for name, topic_id in _references(context, request):
        if (name is None) == (topic_id == ZERO_ID):
            text = "A topic to delete needs either a name or an id"
            refused.append(_result(name, topic_id, ErrorCode.INVALID_REQUEST, text))
        elif (internal := internal_name(gateway.view, topic_id)) is not None:
            text = f"Topic {internal} is internal and cannot be deleted by clients"
            refused.append(_result(internal, topic_id, ErrorCode.INVALID_REQUEST, text))
        elif name == "":
            text = "No topic has an empty name"
            refused.append(_result(name, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
        elif name is None:
            wanted.topics.add(topic_id=topic_id)
        else:
            wanted.topics.add(name=name)
    if not wanted.topics:
        return DeleteTopicsResponse(responses=refused)
    timeout_ms = min(max(1, request.timeout_ms), CALL_TIMEOUT_MS)
    answer = await change_catalog(gateway, DELETE_TOPICS, wanted, timeout_ms=timeout_ms)
    await gateway.catalog.wait_for_version(answer.version, timeout_ms=timeout_ms)
    results = [
        _result(result.name or None, result.topic_id or ZERO_ID, result.error_code, result.error_message)
        for result in answer.results
    ]
    return DeleteTopicsResponse(responses=[*results, *refused])


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
    handle=handle,
    failed=failed,
    elements=ElementArrays(
        ("topics", "topic_names"),
        "responses",
        identity=lambda topic: topic if isinstance(topic, str) else (topic.name, topic.topic_id),
    ),
)
