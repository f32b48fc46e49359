"""`kshare state partitions` and `kshare state drain` against a coordinator that serves over the real network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kshare.addresses import Address
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import CoordinatorUnreachable
from kshare.commands.state.drain import drain_share_coordinator, undo_drain
from kshare.commands.state.partitions import show_state_partitions
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_STATE_PARTITIONS, DRAIN_SHARE_COORDINATOR
from kshare_rpc.network import Service
from support.servicekit.grpc_serving import grpc_serving

Owner = pb.StatePartitionOwner
ShareCoordinator = pb.DescribeStatePartitionsResponse.ShareCoordinator


class Catalog:
    """Answers the two calls; node 2 has five state partitions and loses two at each look, once it is drained."""

    def __init__(self) -> None:
        self.left = 5
        self.stays_at = 0
        self.draining: list[int] = []

    async def describe(
        self, request: pb.DescribeStatePartitionsRequest, payload: memoryview
    ) -> pb.DescribeStatePartitionsResponse:
        return pb.DescribeStatePartitionsResponse(
            state_partitions=[
                Owner(state_partition=0, node_id=1, owner_epoch=7),
                Owner(state_partition=1, node_id=2, owner_epoch=9, is_moving=True, moving_to_node_id=3),
            ],
            share_coordinators=[
                ShareCoordinator(node_id=1, is_live=False),
                ShareCoordinator(node_id=2, is_live=True, is_draining=True, rpc_address="h:2"),
                ShareCoordinator(node_id=3, is_live=True, rpc_address="h:3"),
                ShareCoordinator(node_id=4, is_live=True, is_draining=True, rpc_address="h:4"),
            ],
        )

    async def drain(
        self, request: pb.DrainShareCoordinatorRequest, payload: memoryview
    ) -> pb.DrainShareCoordinatorResponse:
        if request.node_id != 2:
            text = f"Share coordinator {request.node_id} cannot be drained: it is not registered"
            return pb.DrainShareCoordinatorResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
        if request.undo:
            self.draining.remove(2)
            return pb.DrainShareCoordinatorResponse(state_partitions_left=self.left)
        if self.draining:
            self.left = max(self.stays_at, self.left - 2)
        else:
            self.draining.append(2)
        return pb.DrainShareCoordinatorResponse(state_partitions_left=self.left)


@contextmanager
def serving(catalog: Catalog) -> Iterator[Address]:
    """The catalog at an address, served by an event loop in a thread of its own."""
    service = Service(
        COORDINATOR, {DESCRIBE_STATE_PARTITIONS: catalog.describe, DRAIN_SHARE_COORDINATOR: catalog.drain}
    )
    with grpc_serving(service) as address:
        yield address


def test_the_tables_list_owners_and_live_nodes() -> None:
    output = StringIO()
    with serving(Catalog()) as address:
        show_state_partitions(address, Console(file=output, width=100))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["0", "1", "7", ""],
        ["1", "2", "9", "3"],
        ["1", "gone", "1", ""],
        ["2", "draining", "1", "h:2"],
        ["3", "live", "0", "h:3"],
        ["4", "drained", "0", "h:4"],
    ]


def test_drain_waits_until_the_node_is_empty() -> None:
    catalog, shown = Catalog(), list[str]()
    with serving(catalog) as address:
        drain_share_coordinator(address, 2, timeout_s=30, show=shown.append)
    assert catalog.left == 0
    assert shown == [f"share coordinator 2 has {left} state partitions" for left in (5, 3, 1, 0)]


def test_drain_gives_up_after_the_timeout_and_says_what_is_left() -> None:
    catalog = Catalog()
    catalog.stays_at = 3
    with serving(catalog) as address, pytest.raises(CommandFailed, match=r"still has 3 state partitions after 0\.5 s"):
        drain_share_coordinator(address, 2, timeout_s=0.5, show=lambda line: None)


def test_drain_and_its_end_can_be_refused_and_taken_back() -> None:
    catalog = Catalog()
    with serving(catalog) as address:
        with pytest.raises(CommandFailed, match="Share coordinator 9 cannot be drained: it is not registered"):
            drain_share_coordinator(address, 9, timeout_s=1, show=lambda line: None)
        catalog.left = 0
        drain_share_coordinator(address, 2, timeout_s=1, show=lambda line: None)
        undo_drain(address, 2)
    assert catalog.draining == []


@pytest.mark.parametrize(
    "command",
    [
        lambda address: show_state_partitions(address, Console(file=StringIO())),
        lambda address: drain_share_coordinator(address, 2, timeout_s=1, show=lambda line: None),
    ],
)
def test_no_server_at_the_address(command: Callable[[Address], None]) -> None:
    with serving(Catalog()) as address:
        pass
    with pytest.raises(CoordinatorUnreachable, match=f"the coordinator at {address} did not answer"):
        command(address)


def test_the_address_is_told_or_found_in_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "coordinator.ready").write_text("address=127.0.0.1:1234\noperations_address=127.0.0.1:5\n")
    assert coordinator_address(None, tmp_path) == Address("127.0.0.1", 1234)
    assert coordinator_address("h:7", tmp_path) == Address("h", 7)
    for told, data_dir, problem in (
        (None, None, "the coordinator.s address is missing"),
        ("nowhere", None, "--coordinator must be HOST:PORT"),
        (None, tmp_path / "other", "no coordinator runs on"),
    ):
        with pytest.raises(CommandFailed, match=problem) as refused:
            coordinator_address(told, data_dir)
        assert refused.value.exit_code == BAD_USE
