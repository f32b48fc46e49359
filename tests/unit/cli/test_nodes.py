"""`kshare nodes` against a coordinator that serves over the real network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest
from rich.console import Console

from kshare.addresses import Address
from kshare.commands.nodes import show_nodes
from kshare.failure import CommandFailed
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_NODES
from kshare_rpc.network import Service
from support.servicekit.grpc_serving import grpc_serving

NODES = [
    pb.DescribeNodesResponse.DescribedNode(
        node=pb.Node(role=pb.ROLE_GATEWAY, node_id=1, node_epoch=9, advertised_host="gateway", advertised_port=9092),
        lease_remaining_ms=9_949,
    ),
    pb.DescribeNodesResponse.DescribedNode(
        node=pb.Node(role=pb.ROLE_LEADER, node_id=2, node_epoch=4, rpc_address="leader:1"), lease_remaining_ms=50
    ),
]


@contextmanager
def serving(answer: pb.DescribeNodesResponse) -> Iterator[Address]:
    """A coordinator that gives this answer, served by an event loop in a thread of its own."""

    async def describe(request: pb.DescribeNodesRequest, payload: memoryview) -> pb.DescribeNodesResponse:
        return answer

    with grpc_serving(Service(COORDINATOR, {DESCRIBE_NODES: describe})) as address:
        yield address


def test_the_table_of_nodes() -> None:
    output = StringIO()
    with serving(pb.DescribeNodesResponse(nodes=NODES)) as address:
        show_nodes(address, Console(file=output, width=100))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["coordinator", "-", "-", str(address), "-"],
        ["gateway", "1", "9", "gateway:9092", "9.9 s"],
        ["leader", "2", "4", "leader:1", "0.1 s"],
    ]


def test_a_coordinator_that_cannot_say() -> None:
    answer = pb.DescribeNodesResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message="no disk")
    with serving(answer) as address, pytest.raises(CommandFailed, match="no disk"):
        show_nodes(address, Console(file=StringIO()))
