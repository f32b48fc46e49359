"""ConsumerGroupDescribe (key 69), versions 0 and 1: forwarded to the coordinator."""

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
from kshare_rpc.generated.methods import CONSUMER_GROUP_DESCRIBE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.consumer_group_describe import ConsumerGroupDescribeRequest
from kshare_wire.generated.responses.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER_TYPE, CONSUMER_MEMBER_TYPE = 0, 1
"""The protocol that a member uses; version 0 lacks it."""


CoordinatorGroup = coordinator_pb2.ConsumerGroupDescribeResponse.DescribedGroup


async def handle(context: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    groups = await describe_groups(
        context,
        request.group_ids,
        CONSUMER_GROUP_DESCRIBE,
        request_of=coordinator_pb2.ConsumerGroupDescribeRequest,
        described_group=CoordinatorGroup,
    )
    is_asked = request.include_authorized_operations
    return ConsumerGroupDescribeResponse(groups=[_group(context, group, with_operations=is_asked) for group in groups])


def failed(
    context: RequestContext, request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
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


def _member(member: coordinator_pb2.ConsumerGroupDescribeResponse.Member) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id or None,
        rack_id=member.rack_id or None,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(member.assignment),
        target_assignment=_assignment(member.target_assignment),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _assignment(topics: Iterable[coordinator_pb2.TopicPartitions]) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=list(topic.partitions))
            for topic in topics
        ]
    )


serve(
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    VersionRange(0, 1),
    access=Access(each=each_group(Operation.DESCRIBE), by_handler="Describe on the assigned topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("group_ids",), "groups", described=str),
)
