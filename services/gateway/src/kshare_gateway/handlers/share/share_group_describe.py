"""ShareGroupDescribe (key 77), version 1: forwarded to the coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.errors import KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.groups.descriptions import describe_groups, without_hidden_topics
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access, each_group
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import SHARE_GROUP_DESCRIBE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.share_group_describe import ShareGroupDescribeRequest
from kshare_wire.generated.responses.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeResponse,
    TopicPartitions,
)

CoordinatorGroup = coordinator_pb2.ShareGroupDescribeResponse.DescribedGroup


async def handle(context: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    groups = await describe_groups(
        context,
        request.group_ids,
        SHARE_GROUP_DESCRIBE,
        request_of=coordinator_pb2.ShareGroupDescribeRequest,
        described_group=CoordinatorGroup,
    )
    is_asked = request.include_authorized_operations
    return ShareGroupDescribeResponse(groups=[_group(context, group, with_operations=is_asked) for group in groups])


def failed(
    context: RequestContext, request: ShareGroupDescribeRequest, error: KafkaError
) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(
        groups=[
            DescribedGroup(
                error_code=error.code,
                error_message=error.message,
                group_id=group_id,
                authorized_operations=authorized_operations.UNKNOWN,
            )
            for group_id in request.group_ids
        ]
    )


def _group(context: RequestContext, group: CoordinatorGroup, *, with_operations: bool) -> DescribedGroup:
    group = without_hidden_topics(context, group)
    is_known = with_operations and not group.error_code
    return DescribedGroup(
        error_code=group.error_code,
        error_message=group.error_message or None,
        group_id=group.group_id,
        group_state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_name,
        members=[_member(member) for member in group.members],
        authorized_operations=authorized_operations.of_group(context, group.group_id, is_asked=is_known),
    )


def _member(member: coordinator_pb2.ShareGroupDescribeResponse.Member) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id or None,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        assignment=_assignment(member.assignment),
    )


def _assignment(topics: Iterable[coordinator_pb2.TopicPartitions]) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=list(topic.partitions))
            for topic in topics
        ]
    )


serve(
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    VersionRange(1, 1),
    access=Access(each=each_group(Operation.DESCRIBE), by_handler="Describe on the assigned topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("group_ids",), "groups", described=str),
)
