"""Share group state APIs (keys 83 to 87): each share-partition goes to the share coordinator that owns its state.

A request has one group and topics by id; a response has the same topics and partitions in the same order, each
partition with its own result. A share-partition whose state has no owner now is NOT_COORDINATOR. If its share
coordinator does not answer, it is COORDINATOR_NOT_AVAILABLE (whether it took effect is unknown). Kafka's persister
retries after both. All other codes are the share coordinator's. Kafka answers a request without a group or topics with
an empty response; here every partition of a request without a group is INVALID_REQUEST.

These APIs are for brokers: Kafka requires ClusterAction on the cluster. There is no authorizer yet, so all clients are
served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.gateway import Gateway, log
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import CallFailed, Method
from kshare_wire.messages import Body, Message


class StateRequest(NamedTuple):
    """The messages and method of one of the five APIs at a share coordinator."""

    method: Method[Any, Any]
    partition: Callable[[SharePartitionKey, Message], Any]
    """Makes the share coordinator's message for a share-partition from the client's."""
    result: Callable[[Any], Body]
    """Makes the fields of a successful result beside its partition."""


class _Place(NamedTuple):
    """A share-partition's position in the request."""

    topic: int
    partition: int


def no_fields(result: Any) -> Body:
    """The result fields of APIs that answer with an error code only."""
    return {}


async def ask_share_coordinators(context: RequestContext, request: Message, state_request: StateRequest) -> Body:
    """The answer to a request of a client."""
    gateway = context.gateway
    bodies: dict[_Place, Body] = {}
    by_address: dict[str, tuple[list[_Place], list[Any]]] = {}
    for topic_at, topic in enumerate(request.topics):
        for partition_at, entry in enumerate(topic.partitions):
            place = _Place(topic_at, partition_at)
            key = SharePartitionKey(request.group_id, topic.topic_id, entry.partition)
            address = gateway.view.share_coordinator_address(key)
            if address is None:
                text = f"No share coordinator owns the state of {key} now"
                bodies[place] = _refusal(entry.partition, ErrorCode.NOT_COORDINATOR, text)
                continue
            places, wanted = by_address.setdefault(address, ([], []))
            places.append(place)
            wanted.append(state_request.partition(key, entry))
    calls = [
        _ask(gateway, address, request.group_id, wanted, state_request) for address, (_, wanted) in by_address.items()
    ]
    for (places, _), answers in zip(by_address.values(), await asyncio.gather(*calls), strict=True):
        bodies.update(zip(places, answers, strict=True))
    return _body(request, bodies)


def refuse_all(request: Message, error: KafkaError) -> Body:
    """The answer to a request that failed as a whole."""
    return _body(
        request,
        {
            _Place(topic_at, partition_at): _refusal(entry.partition, error.code, error.message)
            for topic_at, topic in enumerate(request.topics)
            for partition_at, entry in enumerate(topic.partitions)
        },
    )


async def _ask(
    gateway: Gateway, address: str, group_id: str, wanted: Sequence[Any], state_request: StateRequest
) -> list[Body]:
    """A body for each of `wanted`, in their order."""
    method = state_request.method
    request = method.request_type(group_id=group_id, partitions=wanted)
    try:
        answer, _ = await gateway.call_leader(address, method, request)
    except CallFailed as failure:
        log.warning("%s at share coordinator %s failed: %s", method.name, address, failure)
        text = f"The share coordinator gave no answer: {failure}"
        return [_refusal(each.partition, ErrorCode.COORDINATOR_NOT_AVAILABLE, text) for each in wanted]
    if len(answer.results) != len(wanted):
        text = f"The share coordinator answered for {len(answer.results)} share-partitions of {len(wanted)}"
        return [_refusal(each.partition, ErrorCode.UNKNOWN_SERVER_ERROR, text) for each in wanted]
    return [
        {
            **_refusal(result.partition, result.error_code, result.error_message),
            **({} if result.error_code else state_request.result(result)),
        }
        for result in answer.results
    ]


def _refusal(partition: int, code: int, message: str) -> Body:
    return {"partition": partition, "error_code": code, "error_message": message or None}


def _body(request: Message, bodies: dict[_Place, Body]) -> Body:
    return {
        "results": [
            {
                "topic_id": topic.topic_id,
                "partitions": [bodies[_Place(topic_at, at)] for at in range(len(topic.partitions))],
            }
            for topic_at, topic in enumerate(request.topics)
        ]
    }
