"""ConsumerGroupHeartbeat (key 68), versions 0 and 1: forwarded to the coordinator with the client's id and address.

Null and an empty string or list mean different things in this request, so the coordinator is told which fields are
null. If it does not answer, the member gets COORDINATOR_NOT_AVAILABLE and retries.

A regular expression finds only topics that the client may describe. The coordinator looks them up, so it is told the
principal, unless the client may do everything.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import check_topics, on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CONSUMER_GROUP_HEARTBEAT
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kshare_wire.generated.responses.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    check_topics(context, Operation.DESCRIBE, request.subscribed_topic_names or ())
    answer = await context.gateway.call_group_coordinator(
        request.group_id, CONSUMER_GROUP_HEARTBEAT, _wanted(context, request)
    )
    assignment = Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, partitions=list(topic.partitions)) for topic in answer.assignment
        ]
    )
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or None,
        member_id=answer.member_id or None,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment if answer.has_assignment else None,
    )


def _wanted(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> coordinator_pb2.ConsumerGroupHeartbeatRequest:
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    owned = request.topic_partitions
    authorizer = context.gateway.authorizer
    is_limited = authorizer is not None and not authorizer.is_super_user(context.principal)
    return coordinator_pb2.ConsumerGroupHeartbeatRequest(
        api_version=context.version,
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        has_instance_id=request.instance_id is not None,
        instance_id=request.instance_id or "",
        has_rack_id=request.rack_id is not None,
        rack_id=request.rack_id or "",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        has_subscribed_topic_names=names is not None,
        subscribed_topic_names=names or (),
        has_subscribed_topic_regex=regex is not None,
        subscribed_topic_regex=regex or "",
        has_server_assignor=request.server_assignor is not None,
        server_assignor=request.server_assignor or "",
        has_owned_partitions=owned is not None,
        owned_partitions=[
            coordinator_pb2.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
            for topic in owned or ()
        ],
        client_id=context.client_id,
        client_host=context.client_host,
        principal=context.principal if is_limited else "",
        is_open_without_acls=authorizer is not None and authorizer.is_open_without_acls,
    )


serve(
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    VersionRange(0, 1),
    access=on_group(Operation.READ, by_handler="Describe on the subscribed topics"),
    handle=handle,
)
