"""DescribeCluster (key 60), versions 0 to 2: the live gateways and the cluster id.

Endpoint type 1 (brokers) only; controllers (2) are MISMATCHED_ENDPOINT_TYPE, as on a Kafka broker, and what is neither
is UNSUPPORTED_ENDPOINT_TYPE. No broker is ever fenced.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.catalog.brokers import broker_fields, client_gateways, controller_id
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

BROKERS, CONTROLLERS = 1, 2


async def handle(context: RequestContext, request: Message) -> Body:
    gateway = context.gateway
    if context.version >= 1 and request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        return {
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": f"Endpoint type {request.endpoint_type} is not supported here; allowed is 1 (brokers)",
            "cluster_authorized_operations": authorized_operations.UNKNOWN,
        }
    return {
        "cluster_id": gateway.view.cluster_id,
        "controller_id": controller_id(context),
        "brokers": [{"broker_id": node.node_id, **broker_fields(context, node)} for node in client_gateways(context)],
        "cluster_authorized_operations": (
            authorized_operations.ALL_OF_CLUSTER
            if request.include_cluster_authorized_operations
            else authorized_operations.UNKNOWN
        ),
    }


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": error.message}


serve(ApiKey.DESCRIBE_CLUSTER, VersionRange(0, 2), handle=handle, failed=failed)
