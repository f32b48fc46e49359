"""`kshare partitions list | move | drain` against a scripted coordinator that serves over the real network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kshare.addresses import Address
from kshare.commands import partitions
from kshare.commands.partitions import parse_partitions, show_partitions
from kshare.failure import BAD_USE, CommandFailed
from kshare.main import app
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_PARTITIONS, DRAIN_LEADER, MOVE_PARTITIONS
from kshare_rpc.network import Method, Service
from support.servicekit.grpc_serving import grpc_serving

METHODS: dict[str, Method[Any, Any]] = {
    "DescribePartitions": DESCRIBE_PARTITIONS,
    "DrainLeader": DRAIN_LEADER,
    "MovePartitions": MOVE_PARTITIONS,
}


class Coordinator:
    """Gives the answers of each method in order, the last one again and again; keeps the requests."""

    def __init__(self, **answers: Sequence[Any]) -> None:
        self._answers = {name: list(given) for name, given in answers.items()}
        self.requests: list[Any] = []

    def service(self) -> Service:
        return Service(COORDINATOR, {METHODS[name]: self._handler(name) for name in self._answers})

    def _handler(self, name: str) -> Callable[[Any, memoryview], Any]:
        async def handle(request: Any, payload: memoryview) -> Any:
            self.requests.append(request)
            given = self._answers[name]
            return given.pop(0) if len(given) > 1 else given[0]

        return handle


@contextmanager
def serving(coordinator: Coordinator) -> Iterator[Address]:
    """Served by an event loop in a thread of its own."""
    with grpc_serving(coordinator.service()) as address:
        yield address


def described(*leaders_of_orders: tuple[int, int | None]) -> pb.DescribePartitionsResponse:
    """Topic "orders": for each partition its leader, and where it moves. Leaders 1 and 2 are live, 3 is gone."""
    topic = pb.Topic(name="orders")
    for number, (leader, moving_to) in enumerate(leaders_of_orders):
        topic.partitions.add(
            partition=number,
            leader_node_id=leader,
            leader_epoch=10 + number,
            is_moving=moving_to is not None,
            moving_to_node_id=moving_to or 0,
            is_fenced=moving_to is not None and number == 0,
        )
    answer = pb.DescribePartitionsResponse(topics=[topic])
    answer.leaders.add(node_id=1, is_live=True, rpc_address="one:1", partition_count=2)
    answer.leaders.add(node_id=2, is_live=True, is_draining=True, rpc_address="two:1")
    answer.leaders.add(node_id=3, partition_count=1)
    return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "POLL_INTERVAL_S", 0.0)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


def run(address: Address, *arguments: str) -> tuple[int, str, str]:
    """The exit code that `kshare partitions` would have, its output, and its failure."""
    result = CliRunner().invoke(app, ["partitions", *arguments, "--coordinator", str(address)])
    failure = result.exception
    if isinstance(failure, CommandFailed):
        return failure.exit_code, result.output, str(failure)
    assert failure is None or isinstance(failure, SystemExit), failure
    return result.exit_code, result.output, ""


def test_the_tables() -> None:
    output = StringIO()
    coordinator = Coordinator(DescribePartitions=[described((1, 2), (1, None), (3, None), (-1, None), (1, 2))])
    with serving(coordinator) as address:
        show_partitions(address, ["orders"], Console(file=output, width=100))
    assert list(coordinator.requests[0].topic_names) == ["orders"]
    assert cells(output.getvalue()) == [
        ["orders", "0", "1", "10", "2 (switching)"],
        ["orders", "1", "1", "11", ""],
        ["orders", "2", "3 (gone)", "12", ""],
        ["orders", "3", "none yet", "13", ""],
        ["orders", "4", "1", "14", "2 (copying)"],
        ["1", "live", "2", "one:1"],
        ["2", "drained", "0", "two:1"],
        ["3", "gone", "1", ""],
    ]


def test_a_topic_that_does_not_exist() -> None:
    answer = pb.DescribePartitionsResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="no topic x")
    with serving(Coordinator(DescribePartitions=[answer])) as address:
        assert run(address, "list", "x")[2].endswith("no topic x")


@pytest.mark.parametrize("text", ["orders", ":0", "orders:", "orders:x", "orders:-1", "", "orders:0,", "a:1,,b:1"])
def test_partitions_that_are_written_wrongly(text: str) -> None:
    with pytest.raises(CommandFailed, match="TOPIC:PARTITION") as failure:
        parse_partitions(text)
    assert failure.value.exit_code == BAD_USE


def test_partitions_as_they_are_written() -> None:
    assert parse_partitions("a:0, b.c:12,a:1,a:0") == [("a", 0), ("b.c", 12), ("a", 1)]


def moved(*codes: int) -> pb.MovePartitionsResponse:
    answer = pb.MovePartitionsResponse()
    for number, code in enumerate(codes):
        answer.results.add(topic_name="orders", partition=number, error_code=code, error_message=f"reason {code}")
    return answer


def test_a_move_that_is_not_waited_for() -> None:
    coordinator = Coordinator(MovePartitions=[moved(0, 0)])
    with serving(coordinator) as address:
        assert run(address, "move", "orders:0,bills:3,orders:1", "--to", "2")[:2] == (
            0,
            "3 partitions are moving to leader 2\n",
        )
    request = coordinator.requests[0]
    named = [(topic.topic_name, list(topic.partitions)) for topic in request.topics]
    assert named == [("orders", [0, 1]), ("bills", [3])] and request.to_node_id == 2 and not request.cancel


def test_a_move_that_is_waited_for() -> None:
    coordinator = Coordinator(
        MovePartitions=[moved(0, 0)],
        DescribePartitions=[
            described((1, 2), (1, 2)),
            described((1, 2), (2, None)),
            described((2, None), (2, None)),
        ],
    )
    with serving(coordinator) as address:
        code, output, _ = run(address, "move", "orders:0,orders:1", "--to", "2", "--wait")
    assert code == 0 and output.splitlines() == [
        "2 partitions are still moving to leader 2",
        "1 partitions are still moving to leader 2",
        "moved 2 partitions to leader 2",
    ]


def test_a_move_that_was_taken_back() -> None:
    coordinator = Coordinator(MovePartitions=[moved(0)], DescribePartitions=[described((1, 2)), described((1, None))])
    with serving(coordinator) as address:
        code, _, failure = run(address, "move", "orders:0", "--to", "2", "--wait")
    assert code == 1 and "orders:0 stays at leader 1" in failure and "cancelled" in failure


def test_a_topic_that_is_made_anew_while_it_moves() -> None:
    coordinator = Coordinator(
        MovePartitions=[moved(0, 0)], DescribePartitions=[described((1, 2), (1, 2)), described((1, None))]
    )
    with serving(coordinator) as address:
        code, _, failure = run(address, "move", "orders:1", "--to", "2", "--wait")
    assert code == 1 and "orders:1 does not exist any more: topic orders was deleted" in failure


def test_a_topic_that_is_deleted_while_it_moves() -> None:
    gone = pb.DescribePartitionsResponse(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="Topic orders does not exist"
    )
    coordinator = Coordinator(MovePartitions=[moved(0)], DescribePartitions=[described((1, 2)), gone])
    with serving(coordinator) as address:
        code, _, failure = run(address, "move", "orders:0", "--to", "2", "--wait")
    assert code == 1 and failure.endswith("Topic orders does not exist")


def test_a_move_that_takes_too_long() -> None:
    coordinator = Coordinator(MovePartitions=[moved(0)], DescribePartitions=[described((1, 2))])
    with serving(coordinator) as address:
        _, _, failure = run(address, "move", "orders:0", "--to", "2", "--wait", "--timeout-s", "0")
    assert "such as orders:0" in failure and "--cancel" in failure


def test_a_move_that_is_refused() -> None:
    with serving(Coordinator(MovePartitions=[moved(0, 3)])) as address:
        _, _, failure = run(address, "move", "orders:0,orders:1", "--to", "2")
    assert failure == "orders:1 cannot be moved: reason 3"
    answer = pb.MovePartitionsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="leader 9 is not live")
    with serving(Coordinator(MovePartitions=[answer])) as address:
        assert run(address, "move", "orders:0", "--to", "9")[2] == "leader 9 is not live"


def test_many_refusals_are_not_all_shown() -> None:
    with serving(Coordinator(MovePartitions=[moved(*[3] * 25)])) as address:
        failure = run(address, "move", "orders:0", "--to", "2")[2]
    assert len(failure.splitlines()) == 11 and failure.endswith("and 15 more")


def test_a_move_is_taken_back() -> None:
    coordinator = Coordinator(MovePartitions=[moved(0)])
    with serving(coordinator) as address:
        assert run(address, "move", "orders:0", "--cancel")[:2] == (0, "cancelled the moves of 1 partitions\n")
    assert coordinator.requests[0].cancel


@pytest.mark.parametrize("options", [[], ["--to", "2", "--cancel"]])
def test_a_move_needs_to_know_where_to(options: list[str]) -> None:
    with serving(Coordinator(MovePartitions=[moved(0)])) as address:
        code, _, failure = run(address, "move", "orders:0", *options)
    assert code == BAD_USE and "--to NODE" in failure


def left(*counts: int) -> list[pb.DrainLeaderResponse]:
    return [pb.DrainLeaderResponse(partitions_left=count) for count in counts]


def test_a_leader_is_emptied() -> None:
    coordinator = Coordinator(DrainLeader=left(3, 3, 1, 0))
    with serving(coordinator) as address:
        code, output, _ = run(address, "drain", "2")
    assert code == 0 and output.splitlines() == [
        "leader 2 has 3 partitions",
        "leader 2 has 1 partitions",
        "leader 2 has 0 partitions",
        "leader 2 is empty and can be stopped",
    ]
    assert all(request.node_id == 2 and not request.undo for request in coordinator.requests)


def test_a_leader_that_is_not_empty_in_time() -> None:
    with serving(Coordinator(DrainLeader=left(3))) as address:
        code, _, failure = run(address, "drain", "2", "--timeout-s", "0")
    assert code == 1 and "still has 3 partitions" in failure and "--undo" in failure


def test_a_drain_that_is_refused_and_one_that_is_taken_back() -> None:
    answer = pb.DrainLeaderResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="nobody can take them")
    with serving(Coordinator(DrainLeader=[answer])) as address:
        assert run(address, "drain", "2")[2] == "nobody can take them"
    coordinator = Coordinator(DrainLeader=left(3))
    with serving(coordinator) as address:
        assert run(address, "drain", "2", "--undo")[:2] == (0, "partitions can be placed at leader 2 again\n")
    assert coordinator.requests[0].undo


def test_no_coordinator_answers() -> None:
    code, _, failure = run(Address("127.0.0.1", 1), "list")
    assert code == 1 and "127.0.0.1:1 did not answer" in failure
