"""Commands with several coordinator addresses: the active coordinator carries them out, the others refuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kshare.addresses import Address
from kshare.commands.nodes import show_nodes
from kshare.commands.state.coordinator_address import CoordinatorAddress, coordinator_address
from kshare.commands.state.coordinator_call import CoordinatorUnreachable, call_coordinator
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_NODES
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Service

REFUSAL = pb.DescribeNodesResponse(error_code=ErrorCode.NOT_COORDINATOR, error_message="ask h:1")
LEADER = pb.DescribeNodesResponse.DescribedNode(node=pb.Node(role=pb.ROLE_LEADER, node_id=2, rpc_address="leader:1"))


@contextmanager
def serving(*answers: pb.DescribeNodesResponse) -> Iterator[list[Address]]:
    """A coordinator for each answer, served by an event loop in a thread of its own."""
    started: list[tuple[list[str], asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_up = threading.Event()

    def service(answer: pb.DescribeNodesResponse) -> Service:
        async def describe(request: pb.DescribeNodesRequest, payload: memoryview) -> pb.DescribeNodesResponse:
            return answer

        return Service(COORDINATOR, {DESCRIBE_NODES: describe})

    async def serve() -> None:
        servers = [await GrpcNetwork().serve("127.0.0.1:0", [service(answer)]) for answer in answers]
        stop = asyncio.Event()
        started.append(([server.address for server in servers], asyncio.get_running_loop(), stop))
        is_up.set()
        await stop.wait()
        for server in servers:
            await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(10)
    addresses, loop, stop = started[0]
    try:
        yield [Address(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def told(*addresses: Address) -> CoordinatorAddress:
    return coordinator_address(",".join(map(str, addresses)), None)


def silent_address() -> Address:
    with serving(REFUSAL) as (address,):
        return address


def test_the_active_one_answers_whichever_is_named_first() -> None:
    gone = silent_address()
    with serving(REFUSAL, pb.DescribeNodesResponse(nodes=[LEADER])) as (standby, active):
        for order in ((standby, active), (active, standby), (gone, standby, active)):
            answer = call_coordinator(told(*order), DESCRIBE_NODES, pb.DescribeNodesRequest())
            assert [each.node.node_id for each in answer.nodes] == [2]


def test_none_is_active() -> None:
    gone = silent_address()
    with serving(REFUSAL) as (standby,):
        with pytest.raises(CoordinatorUnreachable) as caught:
            call_coordinator(told(gone, standby), DESCRIBE_NODES, pb.DescribeNodesRequest())
        assert f"the coordinator at {gone} did not answer DescribeNodes" in str(caught.value)
        assert f"the coordinator at {standby} is not the active one: ask h:1" in str(caught.value)


def test_the_table_of_nodes_says_what_each_coordinator_is() -> None:
    gone = silent_address()
    output = StringIO()
    with serving(REFUSAL, pb.DescribeNodesResponse(nodes=[LEADER])) as (standby, active):
        show_nodes(told(gone, standby, active), Console(file=output, width=100))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["coordinator", "-", "-", str(gone), "silent"],
        ["coordinator", "-", "-", str(standby), "standby"],
        ["coordinator", "-", "-", str(active), "active"],
        ["leader", "2", "0", "leader:1", "0.0 s"],
    ]


def test_all_ready_files_of_a_data_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name, port in (("coordinator-3", 3), ("coordinator-2", 2), ("share-coordinator-2", 9)):
        (tmp_path / "run" / f"{name}.ready").write_text(f"address=127.0.0.1:{port}\n")
    found = coordinator_address(None, tmp_path)
    assert (found, found.others) == (Address("127.0.0.1", 2), (Address("127.0.0.1", 3),))
    (tmp_path / "run" / "coordinator.ready").write_text("address=127.0.0.1:1\n")
    found = coordinator_address(None, tmp_path)
    assert (found, [address.port for address in found.others]) == (Address("127.0.0.1", 1), [2, 3])
