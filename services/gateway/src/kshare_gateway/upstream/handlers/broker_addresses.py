"""Metadata, FindCoordinator and DescribeCluster in mode proxy: the cluster's answers, with addresses of this gateway.

The cluster is asked as the client, so the client sees what it may see. Node ids stay those of the cluster's brokers.
Share coordinators are within kshare, so the broker behind which the client asks is named for every share-partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.handlers.admin import metadata as local_metadata
from kshare_gateway.handlers.groups import find_coordinator as local_coordinators
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ElementArrays, ResponseSize, served_api
from kshare_gateway.upstream.handlers.topic_ids import ask_for_metadata
from kshare_gateway.upstream.permissions import Permission
from kshare_rpc.catalog import ClientEndpoint
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker

FIRST_BATCHED_FIND_COORDINATOR = 4
MAY_ASK_FOR_SHARE_PARTITIONS = Permission(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
BY_THE_CLUSTER = Access(open_to_all="the cluster answers as to this client")


async def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    answer = await ask_for_metadata(context, request)
    endpoints = await _endpoints(context, (broker.node_id for broker in answer.brokers))
    answer.brokers = [
        MetadataResponseBroker(
            node_id=broker.node_id,
            host=endpoints[broker.node_id].host,
            port=endpoints[broker.node_id].port,
            rack=broker.rack,
        )
        for broker in answer.brokers
        if broker.node_id in endpoints
    ]
    return answer


async def describe_cluster(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    answer = await context.cluster.ask(request, VersionRange(0, context.version))
    endpoints = await _endpoints(context, (broker.broker_id for broker in answer.brokers if not broker.is_fenced))
    for broker in answer.brokers:
        if broker.is_fenced:  # it serves nothing, so it has a port only if it served something lately
            own = ClientEndpoint(broker.host, broker.port)
            endpoints[broker.broker_id] = context.cluster.front.endpoint(context.listener, broker.broker_id) or own
    answer.brokers = [
        DescribeClusterBroker(
            broker_id=broker.broker_id,
            host=endpoints[broker.broker_id].host,
            port=endpoints[broker.broker_id].port,
            rack=broker.rack,
            is_fenced=broker.is_fenced,
        )
        for broker in answer.brokers
        if broker.broker_id in endpoints
    ]
    return answer


async def find_coordinator(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if request.key_type == local_coordinators.SHARE:
        return await _of_share_partitions(context, request)
    answer = await context.cluster.ask(request, VersionRange(0, context.version))
    if context.version < FIRST_BATCHED_FIND_COORDINATOR:
        endpoint = (await _endpoints(context, [answer.node_id])).get(answer.node_id)
        if answer.error_code or endpoint is None:
            return FindCoordinatorResponse(
                error_code=answer.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE,
                error_message=answer.error_message,
                node_id=-1,
                port=-1,
            )
        answer.host, answer.port = endpoint
        return answer
    endpoints = await _endpoints(context, (each.node_id for each in answer.coordinators))
    answer.coordinators = [_coordinator(each, endpoints) for each in answer.coordinators]
    return answer


def _coordinator(found: Coordinator, endpoints: dict[int, ClientEndpoint]) -> Coordinator:
    endpoint = endpoints.get(found.node_id)
    if found.error_code or endpoint is None:
        return Coordinator(
            key=found.key,
            node_id=-1,
            host="",
            port=-1,
            error_code=found.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message=found.error_message,
        )
    return Coordinator(key=found.key, node_id=found.node_id, host=endpoint.host, port=endpoint.port)


async def _of_share_partitions(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """As the handler of the embedded engine, which names this gateway, but with the broker's id and port here.

    The cluster does not answer for these keys, so what it allows the client is asked here.
    """
    await context.cluster_permissions.learn([MAY_ASK_FOR_SHARE_PARTITIONS])
    answer = await local_coordinators.handle(context, request)
    broker_id = context.cluster.broker_id
    if broker_id < 0:
        broker_id = min(context.cluster.front.brokers.view.brokers, default=-1)
    endpoint = (await _endpoints(context, [broker_id])).get(broker_id)
    if endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "No broker of the cluster is known now")
    answer.coordinators = [
        each
        if each.error_code
        else Coordinator(key=each.key, node_id=broker_id, host=endpoint.host, port=endpoint.port)
        for each in answer.coordinators
    ]
    return answer


async def _endpoints(context: RequestContext, broker_ids: Iterable[int]) -> dict[int, ClientEndpoint]:
    wanted = [broker_id for broker_id in dict.fromkeys(broker_ids) if broker_id >= 0]
    return await context.cluster.front.endpoints(context.listener, wanted)


METADATA = served_api(
    MetadataRequest,
    MetadataResponse,
    VersionRange(0, 13),
    access=BY_THE_CLUSTER,
    handle=metadata,
    failed=local_metadata.failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
FIND_COORDINATOR = served_api(
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    VersionRange(0, 6),
    access=BY_THE_CLUSTER,
    handle=find_coordinator,
    failed=local_coordinators.failed,
    elements=ElementArrays(("coordinator_keys",), "coordinators"),
)
DESCRIBE_CLUSTER = served_api(
    DescribeClusterRequest,
    DescribeClusterResponse,
    VersionRange(0, 2),
    access=BY_THE_CLUSTER,
    handle=describe_cluster,
)
