"""DeleteShareGroupOffsets (key 92), version 0: forwarded to the coordinator, and answered when the state is deleted."""

from __future__ import annotations

from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_OFFSETS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kshare_wire.generated.responses.delete_share_group_offsets import (
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

CALL_TIMEOUT_MS = 25_000
"""Includes the coordinator's own calls to share coordinators and leaders."""


async def handle(context: RequestContext, request: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
    names = [topic.topic_name for topic in request.topics]
    refused = {name for name in names if not context.authorize(Operation.READ, ResourceType.TOPIC, name)}
    code, text = DENIED[ResourceType.TOPIC]
    denied = [
        DeleteShareGroupOffsetsResponseTopic(topic_name=name, error_code=code, error_message=text)
        for name in names
        if name in refused
    ]
    allowed = [name for name in names if name not in refused]
    wanted = coordinator_pb2.DeleteShareGroupOffsetsRequest(group_id=request.group_id, topic_names=allowed)
    answer = await context.gateway.call_group_coordinator(
        request.group_id, DELETE_SHARE_GROUP_OFFSETS, wanted, timeout_ms=CALL_TIMEOUT_MS
    )
    responses = [
        DeleteShareGroupOffsetsResponseTopic(
            topic_name=result.topic_name,
            topic_id=result.topic_id,
            error_code=result.error_code,
            error_message=result.error_message or None,
        )
        for result in answer.results
    ]
    return DeleteShareGroupOffsetsResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or None,
        responses=[] if answer.error_code else [*responses, *denied],
    )


serve(
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    VersionRange(0, 0),
    access=on_group(Operation.DELETE, by_handler="Read on the topics"),
    handle=handle,
)
