"""ElectLeaders (key 43), versions 0 to 2: no leader is ever elected, because a partition has one replica.

Codes as in ReplicationControlManager.electLeader of Kafka 4.3.1. A partition led by its only replica is
ELECTION_NOT_NEEDED. One whose leader is not live is PREFERRED_LEADER_NOT_AVAILABLE, in an unclean election
ELIGIBLE_LEADERS_NOT_AVAILABLE. One that does not exist is UNKNOWN_TOPIC_OR_PARTITION. If the request names no
partitions (null: all), those that need no election are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import topic_named, unsorted_topics
from kshare_gateway.handlers.admin.metadata import partition_broker
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.elect_leaders import ElectLeadersRequest
from kshare_wire.generated.responses.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult

PREFERRED, UNCLEAN = 0, 1

_TEXTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "There is no such partition",
    ErrorCode.ELECTION_NOT_NEEDED: "The partition's only replica leads it",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The node of the partition's only replica is not live",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "The node of the partition's only replica is not live",
}


async def handle(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[])
    wanted = request.topic_partitions
    if wanted is None:
        return ElectLeadersResponse(replica_election_results=await _all_needed(context, request.election_type))
    return ElectLeadersResponse(
        replica_election_results=[
            _topic(context, entry.topic, entry.partitions, request.election_type) for entry in wanted
        ]
    )


async def _all_needed(context: RequestContext, election_type: int) -> list[ReplicaElectionResult]:
    """The partitions of the cluster that need an election, in slices: most need none."""
    count = context.count_elements()
    results: list[ReplicaElectionResult] = []
    for topic in unsorted_topics(context.gateway):
        found = _topic(context, topic.name, range(len(topic.partitions)), election_type)
        found.partition_result = _needed(found.partition_result)
        if found.partition_result:
            results.append(found)
        if count.add(1 + len(topic.partitions)):
            await count.next_slice()
    return sorted(results, key=lambda result: result.topic)


def failed(context: RequestContext, request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(
            topic=entry.topic,
            partition_result=[
                PartitionResult(partition_id=partition, error_code=error.code, error_message=error.message)
                for partition in entry.partitions
            ],
        )
        for entry in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def _topic(context: RequestContext, name: str, partitions: Iterable[int], election_type: int) -> ReplicaElectionResult:
    results = []
    for partition in partitions:
        code = _code(context, name, partition, election_type)
        results.append(PartitionResult(partition_id=partition, error_code=code, error_message=_TEXTS[code]))
    return ReplicaElectionResult(topic=name, partition_result=results)


def _code(context: RequestContext, name: str, partition: int, election_type: int) -> ErrorCode:
    topic = topic_named(context.gateway, name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    _, is_reachable = partition_broker(context, topic, partition)
    if is_reachable:
        return ErrorCode.ELECTION_NOT_NEEDED
    is_unclean = election_type == UNCLEAN
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def _needed(results: Sequence[PartitionResult]) -> list[PartitionResult]:
    return [result for result in results if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]


serve(
    ElectLeadersRequest,
    ElectLeadersResponse,
    VersionRange(0, 2),
    access=on_cluster(Operation.ALTER),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topic_partitions",), "replica_election_results", "partitions", "partition_result"),
)
