"""Share group state APIs (keys 83 to 87): each share-partition goes to the share coordinator that owns its state.

A request has one group and topics by id; a response has the same topics and partitions in the same order, each
partition with its own result. A share-partition whose state has no owner now is NOT_COORDINATOR. If its share
coordinator does not answer, it is COORDINATOR_NOT_AVAILABLE (whether it took effect is unknown). Kafka's persister
retries after both. All other codes are the share coordinator's. Kafka answers a request without a group or topics with
an empty response; here every partition of a request without a group is INVALID_REQUEST.

These APIs are for brokers: they require ClusterAction on the cluster, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.gateway import Gateway
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import CallFailed, Method


class StatePartition(Protocol):
    """A share-partition in a request of any of the five APIs."""

    @property
    def partition(self) -> int: ...


AnEntry = TypeVar("AnEntry", bound=StatePartition)
AnEntry_co = TypeVar("AnEntry_co", bound=StatePartition, covariant=True)
AResult = TypeVar("AResult")
Results = list[tuple[bytes, list[AResult]]]
"""Topic ids with their partitions' results, in the order of the request."""


class StateTopic(Protocol[AnEntry_co]):
    """A topic in a request of any of the five APIs."""

    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> Sequence[AnEntry_co]: ...


class StateRequest(Protocol[AnEntry_co]):
    """A request of any of the five APIs."""

    @property
    def group_id(self) -> str: ...
    @property
    def topics(self) -> Sequence[StateTopic[AnEntry_co]]: ...


@dataclass(frozen=True, slots=True)
class StateApi(Generic[AnEntry, AResult]):
    """The messages of one of the five APIs, and its method at a share coordinator."""

    method: Method[Any, Any]
    partition: Callable[[SharePartitionKey, AnEntry], Any]
    """Makes the share coordinator's message for a share-partition from the client's."""
    refusal: Callable[[int, int, str | None], AResult]
    """Makes the result of a partition with an error from its index, code and message."""
    result: Callable[[Any], AResult]
    """Makes the result of a partition without an error from the share coordinator's."""
    reads: bool = False
    """Whether the API reads: its message names the owner epoch that this gateway knows."""


class _Place(NamedTuple):
    """A share-partition's position in the request."""

    topic: int
    partition: int


async def ask_share_coordinators(
    context: RequestContext, request: StateRequest[AnEntry], api: StateApi[AnEntry, AResult]
) -> Results[AResult]:
    """The results of a client's request."""
    gateway = context.gateway
    results: dict[_Place, AResult] = {}
    by_address: dict[str, tuple[list[_Place], list[Any]]] = {}
    for topic_at, topic in enumerate(request.topics):
        for partition_at, entry in enumerate(topic.partitions):
            place = _Place(topic_at, partition_at)
            key = SharePartitionKey(request.group_id, topic.topic_id, entry.partition)
            address = gateway.view.share_coordinator_address(key)
            if address is None:
                text = f"No share coordinator currently owns the state of {key}"
                results[place] = api.refusal(entry.partition, ErrorCode.NOT_COORDINATOR, text)
                continue
            places, wanted = by_address.setdefault(address, ([], []))
            places.append(place)
            message = api.partition(key, entry)
            if api.reads:
                message.owner_epoch = gateway.view.state_owner_epoch(key)
            wanted.append(message)
    calls = [_ask(gateway, address, request.group_id, wanted, api) for address, (_, wanted) in by_address.items()]
    for (places, _), answers in zip(by_address.values(), await asyncio.gather(*calls), strict=True):
        results.update(zip(places, answers, strict=True))
    return [
        (topic.topic_id, [results[_Place(topic_at, at)] for at in range(len(topic.partitions))])
        for topic_at, topic in enumerate(request.topics)
    ]


def refuse_all(request: StateRequest[AnEntry], error: KafkaError, api: StateApi[AnEntry, AResult]) -> Results[AResult]:
    """The results of a request that failed as a whole."""
    return [
        (
            topic.topic_id,
            [api.refusal(entry.partition, error.code, error.message or None) for entry in topic.partitions],
        )
        for topic in request.topics
    ]


async def _ask(
    gateway: Gateway,
    address: str,
    group_id: str,
    wanted: Sequence[Any],
    api: StateApi[AnEntry, AResult],
) -> list[AResult]:
    """A result for each of `wanted`, in their order."""
    method = api.method
    request = method.request_type(group_id=group_id, partitions=wanted)
    try:
        answer, _ = await gateway.call_leader(address, method, request)
    except CallFailed as failure:
        gateway.call_failed(method.name, f"share coordinator {address}", failure)
        text = f"The share coordinator did not respond: {failure}"
        return [api.refusal(each.partition, ErrorCode.COORDINATOR_NOT_AVAILABLE, text) for each in wanted]
    if len(answer.results) != len(wanted):
        text = f"The share coordinator answered for {len(answer.results)} share-partitions of {len(wanted)}"
        return [api.refusal(each.partition, ErrorCode.UNKNOWN_SERVER_ERROR, text) for each in wanted]
    return [
        api.refusal(result.partition, result.error_code, result.error_message or None)
        if result.error_code
        else api.result(result)
        for result in answer.results
    ]
