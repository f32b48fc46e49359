"""What ConsumerGroupDescribe and ShareGroupDescribe share: groups by id, each described by its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import Method

AGroup = TypeVar("AGroup", bound=Any)


def without_hidden_topics(context: RequestContext, group: AGroup) -> AGroup:
    """The coordinator's group; TOPIC_AUTHORIZATION_FAILED instead if the client may not describe all assigned topics.

    As in Kafka, the group's id is all that is told then, and topics that are only subscribed to hide nothing.
    """
    if context.gateway.authorizer is None:
        return group
    names = {
        name
        for member in group.members
        for name in (
            *(topic.topic_name for topic in member.assignment),
            *(topic.topic_name for topic in getattr(member, "target_assignment", ())),
        )
    }
    if all(context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names):
        return group
    denied: AGroup = type(group)(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )
    return denied


async def describe_groups(
    context: RequestContext,
    group_ids: Sequence[str],
    method: Method[Any, Any],
    *,
    request_of: Callable[..., Any],
    described_group: Callable[..., AGroup],
) -> list[AGroup]:
    """The coordinators' groups; `request_of` and `described_group` are the classes of the coordinator's messages."""
    with no_answer_as_kafka_says():
        return await context.gateway.catalog.coordinators.call_owners(
            group_ids,
            method,
            request_of=lambda group_ids: request_of(group_ids=group_ids),
            results_of=lambda answer: answer.groups,
            refusal_of=lambda group_id, code, message: described_group(
                group_id=group_id, error_code=code, error_message=message
            ),
            timeout_ms=CALL_TIMEOUT_MS,
        )
