"""Brokers as clients see them: the live gateways. Metadata, DescribeCluster and FindCoordinator use this.

As in Kafka, a client is told the addresses that brokers have for its own listener, and only brokers that have one.
"""

from __future__ import annotations

from kshare_gateway.request_context import RequestContext
from kshare_rpc.catalog import ClientEndpoint, client_endpoint
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.generated.responses.metadata import MetadataResponseBroker


def client_gateways(context: RequestContext) -> list[coordinator_pb2.Node]:
    """The gateways that this client can reach, by node id."""
    return context.gateway.view.gateways(context.listener)


def endpoint_of(context: RequestContext, node: coordinator_pb2.Node) -> ClientEndpoint:
    """The address of a gateway that the client can reach."""
    endpoint = client_endpoint(node, context.listener)
    assert endpoint is not None, f"gateway {node.node_id} has no listener {context.listener}"
    return endpoint


def metadata_brokers(context: RequestContext) -> list[MetadataResponseBroker]:
    return [_metadata_broker(context, node) for node in client_gateways(context)]


def _metadata_broker(context: RequestContext, node: coordinator_pb2.Node) -> MetadataResponseBroker:
    endpoint = endpoint_of(context, node)
    return MetadataResponseBroker(node_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack or None)


def controller_id(context: RequestContext) -> int:
    """The gateway that clients are told as controller: this one, since it is certainly live; -1 if none is known.

    Any gateway takes every administrative request. Others may be gone whose leases have not expired, and clients wait
    long for a controller. If the client cannot reach this gateway by its listener, it is told the first one that it can
    reach.
    """
    known = [node.node_id for node in client_gateways(context)]
    own = context.gateway.node_id
    return own if own in known else next(iter(known), -1)
