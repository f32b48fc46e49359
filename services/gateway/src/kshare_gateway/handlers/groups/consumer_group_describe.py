"""ConsumerGroupDescribe (key 69), versions 0 and 1: forwarded to the coordinator."""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_gateway.groups.descriptions import assignment, describe_groups, refused_groups
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CONSUMER_GROUP_DESCRIBE
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

CLASSIC_MEMBER_TYPE, CONSUMER_MEMBER_TYPE = 0, 1
"""The protocol that a member uses; version 0 lacks it."""


async def handle(context: RequestContext, request: Message) -> Body:
    return await describe_groups(
        context,
        request,
        CONSUMER_GROUP_DESCRIBE,
        request_of=coordinator_pb2.ConsumerGroupDescribeRequest,
        described_group=coordinator_pb2.ConsumerGroupDescribeResponse.DescribedGroup,
        member=_member,
    )


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refused_groups(request, error)


def _member(member: coordinator_pb2.ConsumerGroupDescribeResponse.Member) -> Body:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id or None,
        "rack_id": member.rack_id or None,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": assignment(member.assignment),
        "target_assignment": assignment(member.target_assignment),
        "member_type": CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    }


serve(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    VersionRange(0, 1),
    handle=handle,
    failed=failed,
    response=ResponseSize.LONG,
    elements=ElementArrays(("group_ids",), "groups"),
)
