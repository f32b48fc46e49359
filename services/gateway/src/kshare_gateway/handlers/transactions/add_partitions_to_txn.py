"""AddPartitionsToTxn (key 24), versions 0 to 5: forwarded to the coordinator.

Up to version 3 a request has one transaction, as producers send it. From version 4 on it has many, as brokers send it
(KIP-890); each may only ask whether its partitions are in the transaction. Clients know PRODUCER_FENCED from version 2
on. If a request fails as a whole, old versions report the error in every partition, new ones once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, check_cluster, denied
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.transactions.coordinator_calls import ask_coordinator, fencing_code
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import ADD_PARTITIONS_TO_TXN
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kshare_wire.generated.responses.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

FIRST_VERSION_WITH_PRODUCER_FENCED = 2
FIRST_BATCHED_VERSION = 4

Transaction = coordinator_pb2.AddPartitionsToTxnRequest.Transaction


async def handle(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    is_batched = context.version >= FIRST_BATCHED_VERSION
    if is_batched:
        check_cluster(context, Operation.CLUSTER_ACTION)
    elif (denied := _denied_topics(context, request)) is not None:
        return denied
    transactions = _batched(request) if is_batched else [_single(request)]
    wanted = coordinator_pb2.AddPartitionsToTxnRequest(transactions=transactions)
    answer = await ask_coordinator(context, ADD_PARTITIONS_TO_TXN, wanted)
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), "The coordinator could not add the partitions")
    results = [
        AddPartitionsToTxnResult(
            transactional_id=result.transactional_id,
            topic_results=_topic_results(
                [
                    (entry.topic_name, entry.partition, _code(entry.error_code, context.version))
                    for entry in result.partitions
                ]
            ),
        )
        for result in answer.results
    ]
    if is_batched:
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _denied_topics(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
    """The answer to a producer without authorization; with one topic denied, no partition is added, as in Kafka."""
    if not context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        raise denied(ResourceType.TRANSACTIONAL_ID)
    topics = request.v3_and_below_topics
    refused = {topic.name for topic in topics if not context.authorize(Operation.WRITE, ResourceType.TOPIC, topic.name)}
    if not refused:
        return None
    entries = []
    for topic in topics:
        is_known = topic_named(context.gateway, topic.name) is not None
        code = (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if topic.name in refused
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            if is_known
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        entries += [(topic.name, partition, int(code)) for partition in topic.partitions]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(entries))


def failed(
    context: RequestContext, request: AddPartitionsToTxnRequest, error: KafkaError
) -> AddPartitionsToTxnResponse:
    if context.version >= FIRST_BATCHED_VERSION:
        return AddPartitionsToTxnResponse(error_code=error.code, results_by_transaction=[])
    refused = [
        (topic.name, partition, error.code) for topic in request.v3_and_below_topics for partition in topic.partitions
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(refused))


def _code(code: int, version: int) -> int:
    return fencing_code(code, version, FIRST_VERSION_WITH_PRODUCER_FENCED)


def _topic_results(entries: Iterable[tuple[str, int, int]]) -> list[AddPartitionsToTxnTopicResult]:
    """Groups triples of topic name, partition and error code by topic."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, partition, code in entries:
        topics.setdefault(name, []).append(
            AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=code)
        )
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=partitions) for name, partitions in topics.items()
    ]


def _single(request: AddPartitionsToTxnRequest) -> Transaction:
    return Transaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=_topics(request.v3_and_below_topics),
    )


def _batched(request: AddPartitionsToTxnRequest) -> list[Transaction]:
    return [
        Transaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            verify_only=transaction.verify_only,
            topics=_topics(transaction.topics),
        )
        for transaction in request.transactions
    ]


def _topics(topics: Sequence[AddPartitionsToTxnTopic]) -> list[coordinator_pb2.NamedPartitions]:
    return [coordinator_pb2.NamedPartitions(topic_name=topic.name, partitions=topic.partitions) for topic in topics]


serve(
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    VersionRange(0, 5),
    access=Access(by_handler="Write on the transactional id and the topics; ClusterAction for brokers"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(
        ("v3_and_below_topics",), "results_by_topic_v3_and_below", "partitions", "results_by_partition", is_split=False
    ),
)
