"""Metadata in mode share: the cluster's answer to this client, with gateways as its brokers and leaders.

Partitions that share groups use are led by the gateway that the catalog's placement gives them (`ClientBrokers`), and
have its leader epochs. For others any gateway will do: their first share group makes the catalog know them. Those have
no leader epoch: the cluster's may be greater than the catalog's later on, which clients would then ignore as outdated.
"""

from __future__ import annotations

from zlib import crc32

from kshare_core.errors import ErrorCode
from kshare_gateway.catalog.brokers import controller_id, metadata_brokers
from kshare_gateway.gateway import ClientBrokers
from kshare_gateway.handlers.admin import metadata as local_metadata
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ResponseSize, served_api
from kshare_gateway.upstream.handlers.broker_addresses import BY_THE_CLUSTER
from kshare_gateway.upstream.handlers.topic_ids import ask_for_metadata
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

PARTITIONS_AT_ONCE = 1_000
"""Of one answer, between two turns of other requests."""
NO_EPOCH = -1


async def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    answer = await ask_for_metadata(context, request)
    gateway = context.gateway
    brokers = metadata_brokers(context)
    leaders = gateway.client_brokers(context.listener)
    gateways = [broker.node_id for broker in brokers]
    since_pause = 0
    for topic in answer.topics:
        known = gateway.view.topics_by_name.get(topic.name or "")
        topic.partitions = [_partition(topic, each, known, leaders, gateways) for each in topic.partitions]
        since_pause += 1 + len(topic.partitions)
        if since_pause >= PARTITIONS_AT_ONCE:
            since_pause = 0
            await gateway.slices.next_slice(context.is_wanted)
    answer.brokers = brokers
    answer.controller_id = controller_id(context)
    return answer


def _partition(
    topic: MetadataResponseTopic,
    found: MetadataResponsePartition,
    known: coordinator_pb2.Topic | None,
    leaders: ClientBrokers,
    gateways: list[int],
) -> MetadataResponsePartition:
    index = found.partition_index
    epoch, code = NO_EPOCH, ErrorCode.NONE
    if known is not None and 0 <= index < len(known.partitions):
        leader = leaders.broker(known, index)
        epoch = known.partitions[index].leader_epoch
        if leader < 0 or not leaders.is_reachable(known, index):
            leader, code = -1, ErrorCode.LEADER_NOT_AVAILABLE
    elif gateways:
        leader = gateways[(crc32((topic.name or "").encode()) + index) % len(gateways)]
    else:
        leader, code = -1, ErrorCode.LEADER_NOT_AVAILABLE
    replicas = [leader] if leader >= 0 else []
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=replicas,
        isr_nodes=replicas,
    )


METADATA_OF_GATEWAYS = served_api(
    MetadataRequest,
    MetadataResponse,
    VersionRange(0, 13),
    access=BY_THE_CLUSTER,
    handle=handle,
    failed=local_metadata.failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
