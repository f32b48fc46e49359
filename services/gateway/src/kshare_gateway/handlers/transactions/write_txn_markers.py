"""WriteTxnMarkers (key 27), versions 1 and 2: to all partitions' leaders at once.

`kafka-transactions.sh abort` sends it to end a transaction that no coordinator ends (KIP-664). It needs Alter or
ClusterAction on the cluster, as in KafkaApis.handleWriteTxnMarkersRequest. A partition that does not exist is
UNKNOWN_TOPIC_OR_PARTITION, one of an internal topic INVALID_TOPIC_EXCEPTION, since no transaction writes there. A
leader that does not answer is NOT_LEADER_OR_FOLLOWER; it may write the markers later, and they can be sent again. The
other errors are the leader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.gateway import Gateway
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, check_cluster
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import WRITE_TXN_MARKERS
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.write_txn_markers import WritableTxnMarker, WriteTxnMarkersRequest
from kshare_wire.generated.responses.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

_Marker = leader_pb2.WriteTxnMarkersRequest.Marker
_Partition = leader_pb2.WriteTxnMarkersRequest.Partition


class _MarkedPartition(NamedTuple):
    """What a result is about: Kafka answers the partitions of each producer once."""

    producer_id: int
    name: str
    partition: int


_Results = dict[_MarkedPartition, int]


async def handle(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    if not context.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        check_cluster(context, Operation.CLUSTER_ACTION)
    gateway = context.gateway
    results: _Results = {}
    by_leader: dict[str, list[_Marker]] = {}
    names: dict[bytes, str] = {}
    for marker in request.markers:
        wanted: dict[str, list[_Partition]] = {}
        for marked in _partitions(marker):
            topic = topic_named(gateway, marked.name)
            if topic is None or topic.internal:
                is_unknown = topic is None
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else ErrorCode.INVALID_TOPIC_EXCEPTION
                results[marked] = code
                continue
            address, code = gateway.leader_of(TopicPartition(topic.topic_id, marked.partition))
            if code:
                results[marked] = gateway.code_for_names(code)
                continue
            names[topic.topic_id] = marked.name
            wanted.setdefault(address, []).append(_Partition(topic_id=topic.topic_id, partition=marked.partition))
        for address, partitions in wanted.items():
            by_leader.setdefault(address, []).append(_marker(marker, partitions))
    calls = [_write_at(gateway, address, markers) for address, markers in by_leader.items()]
    for answer in await asyncio.gather(*calls):
        for result in answer:
            marked = _MarkedPartition(result.producer_id, names[result.topic_id], result.partition)
            results[marked] = gateway.code_for_names(result.error_code)
    return _body(request, results)


def failed(context: RequestContext, request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    return _body(request, {marked: error.code for marker in request.markers for marked in _partitions(marker)})


def _partitions(marker: WritableTxnMarker) -> Iterator[_MarkedPartition]:
    for topic in marker.topics:
        for partition in topic.partition_indexes:
            yield _MarkedPartition(marker.producer_id, topic.name, partition)


def _marker(marker: WritableTxnMarker, partitions: Sequence[_Partition]) -> _Marker:
    return _Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
        partitions=partitions,
    )


async def _write_at(
    gateway: Gateway, address: str, markers: Sequence[_Marker]
) -> Sequence[leader_pb2.WriteTxnMarkersResponse.Result]:
    try:
        answer, _ = await gateway.call_leader(
            address, WRITE_TXN_MARKERS, leader_pb2.WriteTxnMarkersRequest(markers=markers)
        )
    except CallFailed as failure:
        gateway.call_failed("WriteTxnMarkers", f"leader {address}", failure)
        return [
            leader_pb2.WriteTxnMarkersResponse.Result(
                producer_id=marker.producer_id,
                topic_id=partition.topic_id,
                partition=partition.partition,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            for marker in markers
            for partition in marker.partitions
        ]
    return answer.results


def _body(request: WriteTxnMarkersRequest, results: _Results) -> WriteTxnMarkersResponse:
    by_producer: dict[int, dict[str, dict[int, None]]] = {}
    for marker in request.markers:
        topics = by_producer.setdefault(marker.producer_id, {})
        for marked in _partitions(marker):
            topics.setdefault(marked.name, {})[marked.partition] = None
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=partition,
                                error_code=results.get(
                                    _MarkedPartition(producer_id, name, partition), ErrorCode.UNKNOWN_SERVER_ERROR
                                ),
                            )
                            for partition in partitions
                        ],
                    )
                    for name, partitions in topics.items()
                ],
            )
            for producer_id, topics in by_producer.items()
        ]
    )


serve(
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    VersionRange(1, 2),
    access=Access(by_handler="Alter or ClusterAction on the cluster"),
    handle=handle,
    failed=failed,
)
