"""ShareGroupDescribe (key 77), version 1: handed to the coordinator. Authorized operations are not given."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.handlers.brokers import AUTHORIZED_OPERATIONS_UNKNOWN
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import SHARE_GROUP_DESCRIBE
from kshare_wire.messages import Body, Message

DescribedGroup = coordinator_pb2.ShareGroupDescribeResponse.DescribedGroup


async def handle(context: RequestContext, request: Message) -> Body:
    with no_answer_as_kafka_says():
        groups = await context.gateway.catalog.coordinators.call_owners(
            request.group_ids,
            SHARE_GROUP_DESCRIBE,
            request_of=lambda group_ids: coordinator_pb2.ShareGroupDescribeRequest(group_ids=group_ids),
            results_of=lambda answer: answer.groups,
            refusal_of=_refused,
            timeout_ms=CALL_TIMEOUT_MS,
        )
    return {"groups": [_group(group) for group in groups]}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    groups = [
        {
            "error_code": error.code,
            "error_message": error.message,
            "group_id": group_id,
            "authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
        }
        for group_id in request.group_ids
    ]
    return {"groups": groups}


def _refused(group_id: str, code: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=code, error_message=message)


def _group(group: DescribedGroup) -> Body:
    return {
        "error_code": group.error_code,
        "error_message": group.error_message or None,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [_member(member) for member in group.members],
        "authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
    }


def _member(member: coordinator_pb2.ShareGroupDescribeResponse.Member) -> Body:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id or None,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.subscribed_topic_names),
        "assignment": {
            "topic_partitions": [
                {
                    "topic_id": topic.topic_id,
                    "topic_name": topic.topic_name,
                    "partitions": list(topic.partitions),
                }
                for topic in member.assignment
            ]
        },
    }
