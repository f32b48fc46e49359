"""DescribeProducers (key 61), version 0: from all partitions' leaders at once; `kafka-transactions.sh` uses it.

Partitions of internal topics have no producers. A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, an
invalid topic name INVALID_TOPIC_EXCEPTION. A partition without a leader, or whose leader does not answer, is
NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from operator import attrgetter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.gateway import Gateway
from kshare_gateway.handlers.admin.metadata import is_valid_topic_name
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DESCRIBE_PRODUCERS
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_producers import DescribeProducersRequest
from kshare_wire.generated.responses.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_Wanted = leader_pb2.DescribeProducersRequest.Partition


async def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    gateway = context.gateway
    results: dict[tuple[str, int], PartitionResponse] = {}
    by_leader: dict[str, list[_Wanted]] = {}
    names: dict[bytes, str] = {}
    for name, partition in _partitions(request):
        topic = topic_named(gateway, name)
        if topic is not None and topic.internal and 0 <= partition < len(topic.partitions):
            results[(name, partition)] = PartitionResponse(partition_index=partition, active_producers=[])
            continue
        if topic is None:
            results[(name, partition)] = _refusal(partition, _no_topic(name))
            continue
        address, code = gateway.leader_of(TopicPartition(topic.topic_id, partition))
        if code:
            code = ErrorCode(gateway.code_for_names(code))
            error = KafkaError(code, f"Partition {partition} of {name} has no known leader")
            results[(name, partition)] = _refusal(partition, error)
            continue
        names[topic.topic_id] = name
        by_leader.setdefault(address, []).append(_Wanted(topic_id=topic.topic_id, partition=partition))
    calls = [_describe_at(gateway, address, wanted) for address, wanted in by_leader.items()]
    for answers in await asyncio.gather(*calls):
        for topic_id, body in answers:
            results[(names[topic_id], body.partition_index)] = body
    return _body(request, results)


def _no_topic(name: str) -> KafkaError:
    if is_valid_topic_name(name):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No topic has the name {name}")
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"No topic can have the name {name[:300]!r}")


def failed(context: RequestContext, request: DescribeProducersRequest, error: KafkaError) -> DescribeProducersResponse:
    return _body(request, {(name, partition): _refusal(partition, error) for name, partition in _partitions(request)})


def _partitions(request: DescribeProducersRequest) -> Iterator[tuple[str, int]]:
    for topic in request.topics:
        for partition in topic.partition_indexes:
            yield topic.name, partition


async def _describe_at(
    gateway: Gateway, address: str, wanted: Sequence[_Wanted]
) -> list[tuple[bytes, PartitionResponse]]:
    request = leader_pb2.DescribeProducersRequest(partitions=wanted)
    try:
        answer, _ = await gateway.call_leader(address, DESCRIBE_PRODUCERS, request)
    except CallFailed as failure:
        gateway.call_failed("DescribeProducers", f"leader {address}", failure)
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader did not respond: {failure}")
        return [(entry.topic_id, _refusal(entry.partition, error)) for entry in wanted]
    return [(result.topic_id, _described(result)) for result in answer.results]


def _described(result: leader_pb2.DescribeProducersResponse.Result) -> PartitionResponse:
    return PartitionResponse(
        partition_index=result.partition,
        error_code=result.error_code,
        error_message=result.error_message or None,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_transaction_start_offset,
            )
            for producer in result.active_producers
        ],
    )


def _refusal(partition: int, error: KafkaError) -> PartitionResponse:
    return PartitionResponse(
        partition_index=partition,
        error_code=error.code,
        error_message=error.message,
        active_producers=[],
    )


def _body(
    request: DescribeProducersRequest, results: dict[tuple[str, int], PartitionResponse]
) -> DescribeProducersResponse:
    missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The leader's response left this partition out")
    topics = [
        TopicResponse(
            name=topic.name,
            partitions=[
                results.get((topic.name, partition)) or _refusal(partition, missing)
                for partition in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


serve(
    DescribeProducersRequest,
    DescribeProducersResponse,
    VersionRange(0, 0),
    access=Access(each=each_topic(Operation.READ)),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("topics",), "topics", "partition_indexes", "partitions", described=attrgetter("name")),
)
