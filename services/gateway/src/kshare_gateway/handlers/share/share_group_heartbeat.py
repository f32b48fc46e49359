"""ShareGroupHeartbeat (key 76), version 1: forwarded to the coordinator with the client's id and address.

If the coordinator does not answer, the member gets COORDINATOR_NOT_AVAILABLE and retries; codes that librdkafka treats
as fatal come only from the coordinator itself.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import check_topics, on_group
from kshare_gateway.served_apis import serve
from kshare_gateway.share.requests import checked_member_id
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import SHARE_GROUP_HEARTBEAT
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.share_group_heartbeat import ShareGroupHeartbeatRequest
from kshare_wire.generated.responses.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(context: RequestContext, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    checked_member_id(request.member_id)  # before the topics are authorized, as in Kafka
    names = request.subscribed_topic_names
    check_topics(context, Operation.DESCRIBE, names or ())
    is_rack_blank = request.rack_id is not None and not request.rack_id.strip()
    if is_rack_blank and request.member_id.strip() and request.group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    wanted = coordinator_pb2.ShareGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id or "",
        has_subscribed_topic_names=names is not None,
        subscribed_topic_names=names or (),
        client_id=context.client_id,
        client_host=context.client_host,
    )
    answer = await context.gateway.call_group_coordinator(request.group_id, SHARE_GROUP_HEARTBEAT, wanted)
    assignment = Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, partitions=list(topic.partitions)) for topic in answer.assignment
        ]
    )
    return ShareGroupHeartbeatResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or None,
        member_id=answer.member_id or None,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment if answer.has_assignment else None,
    )


serve(
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    VersionRange(1, 1),
    access=on_group(Operation.READ, by_handler="Describe on the subscribed topics"),
    handle=handle,
)
