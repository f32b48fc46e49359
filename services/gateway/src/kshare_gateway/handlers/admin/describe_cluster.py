"""DescribeCluster (key 60), versions 0 to 2: the live gateways and the cluster id.

Endpoint type 1 (brokers) only; controllers (2) are MISMATCHED_ENDPOINT_TYPE, as on a Kafka broker, and what is neither
is UNSUPPORTED_ENDPOINT_TYPE. No broker is ever fenced.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_gateway.catalog.brokers import client_gateways, controller_id, endpoint_of
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.responses.describe_cluster import DescribeClusterBroker, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


async def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    gateway = context.gateway
    if context.version >= 1 and request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Endpoint type {request.endpoint_type} is not supported here; allowed is 1 (brokers)",
            cluster_authorized_operations=authorized_operations.UNKNOWN,
        )
    return DescribeClusterResponse(
        cluster_id=gateway.view.cluster_id,
        controller_id=controller_id(context),
        brokers=[_broker(context, node) for node in client_gateways(context)],
        cluster_authorized_operations=(
            authorized_operations.of_cluster(context)
            if request.include_cluster_authorized_operations
            else authorized_operations.UNKNOWN
        ),
    )


def _broker(context: RequestContext, node: coordinator_pb2.Node) -> DescribeClusterBroker:
    endpoint = endpoint_of(context, node)
    return DescribeClusterBroker(broker_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack or None)


serve(
    DescribeClusterRequest,
    DescribeClusterResponse,
    VersionRange(0, 2),
    access=Access(by_handler="authorized operations need Describe on the cluster"),
    handle=handle,
)
