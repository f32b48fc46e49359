"""DescribeCluster (key 60), versions 0 to 2: the live gateways and the cluster id.

Endpoint type 1 (brokers) only; controllers (2) are UNSUPPORTED_ENDPOINT_TYPE as on a Kafka broker that is no
controller. No broker is ever fenced. Authorized operations are not given.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_gateway.handlers.brokers import AUTHORIZED_OPERATIONS_UNKNOWN, broker_fields, controller_id
from kshare_gateway.request_context import RequestContext
from kshare_wire.messages import Body, Message

UNSUPPORTED_ENDPOINT_TYPE = 115
BROKERS = 1


async def handle(context: RequestContext, request: Message) -> Body:
    gateway = context.gateway
    if context.version >= 1 and request.endpoint_type != BROKERS:
        return {
            "error_code": UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": f"Endpoint type {request.endpoint_type} is not supported here; allowed is 1 (brokers)",
            "endpoint_type": request.endpoint_type,
            "cluster_authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
        }
    return {
        "cluster_id": gateway.view.cluster_id,
        "controller_id": controller_id(gateway),
        "brokers": [{"broker_id": node.node_id, **broker_fields(node)} for node in gateway.view.gateways()],
        "cluster_authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
    }


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": error.message}
