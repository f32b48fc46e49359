"""`kshare partitions rebalance`: the plan, and the requests of the command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kshare.commands.rebalance import plan_moves
from kshare.main import app
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_PARTITIONS, MOVE_PARTITIONS
from kshare_rpc.network import Service
from support.servicekit.grpc_serving import grpc_serving

Placement = Mapping[str, Sequence[int]]
"""By topic, the leader of each partition."""


def described(placement: Placement, live: Sequence[int], draining: Sequence[int] = ()) -> pb.DescribePartitionsResponse:
    answer = pb.DescribePartitionsResponse()
    for name, leaders in placement.items():
        topic = answer.topics.add(name=name)
        for number, leader in enumerate(leaders):
            topic.partitions.add(partition=number, leader_node_id=leader)
    for node_id in live:
        answer.leaders.add(node_id=node_id, is_live=True, is_draining=node_id in draining)
    return answer


def after(
    placement: Placement, answer: pb.DescribePartitionsResponse, topics: Sequence[str] = ()
) -> dict[str, list[int]]:
    """The placement once all planned moves are done; each partition moves at most once, from where it is."""
    found = {name: list(leaders) for name, leaders in placement.items()}
    seen = set()
    for (name, number), source, receiver in plan_moves(answer, topics):
        assert found[name][number] == source and (name, number) not in seen
        seen.add((name, number))
        found[name][number] = receiver
    return found


def counts(placement: Placement, live: Sequence[int]) -> Counter[int]:
    found = Counter(dict.fromkeys(live, 0))
    found.update(leader for leaders in placement.values() for leader in leaders)
    return found


@given(
    placement=st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 4), max_size=12), max_size=4),
    live=st.sets(st.integers(1, 4), min_size=1).map(sorted),
)
def test_numbers_differ_by_at_most_one_with_the_fewest_moves(placement: Placement, live: list[int]) -> None:
    answer = described(placement, live)
    balanced = counts(after(placement, answer), live)
    numbers = [balanced[node_id] for node_id in live]
    assert max(numbers) - min(numbers) <= 1
    before = counts(placement, live)
    fewest = sum(max(balanced[node_id] - before[node_id], 0) for node_id in live)
    assert len(plan_moves(answer)) == fewest
    assert all(balanced[node_id] == before[node_id] for node_id in set(before) - set(live)), "others stay"


def test_each_topic_is_spread() -> None:
    placement = {"a": [1] * 4, "b": [1] * 4}
    spread = after(placement, described(placement, [1, 2]))
    assert [Counter(leaders) for leaders in spread.values()] == [{1: 2, 2: 2}, {1: 2, 2: 2}]


def test_a_draining_leader_gets_nothing_and_named_topics_only_move() -> None:
    placement = {"a": [1] * 4, "b": [1] * 4}
    assert plan_moves(described(placement, [1, 2], draining=[2])) == []
    spread = after(placement, described(placement, [1, 2]), ["b"])
    assert spread == {"a": [1] * 4, "b": [2] * 4}


def test_a_partition_that_moves_is_counted_where_it_will_be() -> None:
    answer = described({"a": [1, 1]}, [1, 2])
    answer.topics[0].partitions[0].is_moving = True
    answer.topics[0].partitions[0].moving_to_node_id = 2
    assert plan_moves(answer) == []


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_the_command(is_dry_run: bool) -> None:
    requests: list[pb.MovePartitionsRequest] = []

    async def describe(_: pb.DescribePartitionsRequest, __: memoryview) -> pb.DescribePartitionsResponse:
        return described({"a": [1, 1, 1]}, [1, 2, 3])

    async def move(request: pb.MovePartitionsRequest, _: memoryview) -> pb.MovePartitionsResponse:
        requests.append(request)
        return pb.MovePartitionsResponse()

    with grpc_serving(Service(COORDINATOR, {DESCRIBE_PARTITIONS: describe, MOVE_PARTITIONS: move})) as address:
        options = ["--coordinator", str(address), "--json", *(["--dry-run"] if is_dry_run else [])]
        done = CliRunner().invoke(app, ["partitions", "rebalance", *options])
    assert done.exit_code == 0
    moves = json.loads(done.stdout)["moves"]
    assert {(move["from_leader"], move["to_leader"]) for move in moves} == {(1, 2), (1, 3)}
    sent = {request.to_node_id: [list(topic.partitions) for topic in request.topics] for request in requests}
    assert sent == ({} if is_dry_run else {move["to_leader"]: [[move["partition"]]] for move in moves})
