"""Helpers of ConsumerGroupDescribe and ShareGroupDescribe: groups by id, each described by its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kshare_core.errors import KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.network import Method
from kshare_wire.messages import Body, Message


async def describe_groups(
    context: RequestContext,
    request: Message,
    method: Method[Any, Any],
    *,
    request_of: Callable[..., Any],
    described_group: Callable[..., Any],
    member: Callable[[Any], Body],
) -> Body:
    """The response to a describe request; `member` makes the body of a member.

    `request_of` and `described_group` are the coordinator's messages.
    """
    with no_answer_as_kafka_says():
        groups = await context.gateway.catalog.coordinators.call_owners(
            request.group_ids,
            method,
            request_of=lambda group_ids: request_of(group_ids=group_ids),
            results_of=lambda answer: answer.groups,
            refusal_of=lambda group_id, code, message: described_group(
                group_id=group_id, error_code=code, error_message=message
            ),
            timeout_ms=CALL_TIMEOUT_MS,
        )
    is_asked = request.include_authorized_operations
    return {"groups": [_group(group, member, with_operations=is_asked) for group in groups]}


def refused_groups(request: Message, error: KafkaError) -> Body:
    """The response if the request failed for all groups."""
    groups = [
        {
            "error_code": error.code,
            "error_message": error.message,
            "group_id": group_id,
            "authorized_operations": authorized_operations.UNKNOWN,
        }
        for group_id in request.group_ids
    ]
    return {"groups": groups}


def assignment(topics: Iterable[coordinator_pb2.TopicPartitions]) -> Body:
    """A member's assigned partitions."""
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": list(topic.partitions)}
            for topic in topics
        ]
    }


def _group(group: Any, member: Callable[[Any], Body], *, with_operations: bool) -> Body:
    is_known = with_operations and not group.error_code
    return {
        "error_code": group.error_code,
        "error_message": group.error_message or None,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [member(found) for found in group.members],
        "authorized_operations": authorized_operations.ALL_OF_GROUP if is_known else authorized_operations.UNKNOWN,
    }
