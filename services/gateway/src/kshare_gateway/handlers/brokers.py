"""Brokers as clients see them: the live gateways. Metadata, DescribeCluster and FindCoordinator share this."""

from __future__ import annotations

from kshare_gateway.gateway import Gateway
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.messages import Body

AUTHORIZED_OPERATIONS_UNKNOWN = -(1 << 31)
"""Kafka's way to say that authorized operations were not asked for or are not known."""


def broker_fields(node: coordinator_pb2.Node) -> dict[str, object]:
    return {"host": node.advertised_host, "port": node.advertised_port, "rack": node.rack or None}


def metadata_brokers(gateway: Gateway) -> list[Body]:
    return [{"node_id": node.node_id, **broker_fields(node)} for node in gateway.view.gateways()]


def controller_id(gateway: Gateway) -> int:
    """Any gateway takes every administrative request; clients are told the first one. -1: none is known."""
    gateways = gateway.view.gateways()
    return gateways[0].node_id if gateways else -1
